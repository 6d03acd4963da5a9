"""A guest that takes all it can get: processes, memory, disk, on every virtual CPU it has.

What counts is read from the host: how long it takes there to start a process, how soon `box get`
answers, and what the control groups and the disk's file say. That the guest was really busy is
read from its VMM's CPU time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import groups
from .arena import DATA_MIB, RAM_MIB, Arena
from .home import BoxError
from .report import Failed, Unproved, check

NAME = "load"
MIB = 1 << 20
QUIET_SECONDS, WINDOW_SECONDS = 2.5, 1.5
# What somebody else does on this host for a moment is no hole; what the guest does goes on.
WINDOWS, CALM = 8, 3
SPAWN_FACTOR = 3.0
GET_SECONDS = 2.0
MENDED_SECONDS = 90
# The rest of the disk is the file system's own, and what it has not written yet.
FILLED, FILL_SECONDS = 0.7, 15
# Of its virtual CPUs; what others do on this host at the same time takes its share.
BUSY_SHARE = 0.2
FORKS = r"""
    for cpu in 1 2 3 4; do while :; do :; done & done
    bomb() { bomb | bomb & }
    bomb
    sleep 60
"""
# Each takes what the others leave; who is killed for it is replaced.
HOG = r"""
    while :; do tail /dev/zero; done &
    while :; do tail /dev/zero; done &
    sleep 60
"""
FILLER = r"""
    for cpu in 1 2 3 4; do while :; do :; done & done
    while :; do
        dd if=/dev/zero of=/data/one bs=64k; dd if=/dev/zero of=/data/two bs=4k; sync
        rm -f /data/one /data/two
    done
"""


@dataclass
class Seen:
    """What the host saw for a while. Times in seconds, `cpus` in processors' worth of time."""

    spawns: list[float] = field(default_factory=list)
    gets: list[float] = field(default_factory=list)
    pids: int = 0
    cpus: float = 0.0

    @property
    def spawn(self) -> float:
        """The 95th percentile."""
        return sorted(self.spawns)[int(len(self.spawns) * 0.95)]


def _cpus() -> int:
    """Of the sandbox: as many as could keep this host busy."""
    return min(4, os.cpu_count() or 1)


def _quiet(arena: Arena) -> Seen:
    """The same measurement with the same sandbox at rest, once."""

    def measure() -> Seen:
        arena.sandbox(NAME, cpus=_cpus())
        return _window(arena, QUIET_SECONDS)

    return arena.once("quiet", measure)


def _watch(arena: Arena, quiet: Seen) -> list[Seen]:
    """As many windows as it takes to know whether the host was itself in CALM of WINDOWS."""
    windows: list[Seen] = []
    while len(windows) < WINDOWS:
        windows.append(_window(arena, WINDOW_SECONDS))
        calm = sum(not _trouble(arena, quiet, each) for each in windows)
        if calm == CALM or len(windows) - calm > WINDOWS - CALM:
            break
    return windows


def _window(arena: Arena, seconds: float) -> Seen:
    seen = Seen()
    folder = _group(arena)["pids"]
    vmm, began = arena.vmm(NAME), time.monotonic()
    used = _cpu_time(vmm)
    # One after the other: a command at work would hold up the processes started beside it, at rest
    # on a processor of its own, under load on theirs.
    _ask(arena, seen)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        subprocess.run(["/bin/true"], stdin=subprocess.DEVNULL, check=True)
        seen.spawns.append(time.monotonic() - start)
        seen.pids = max(seen.pids, len(groups.members(folder)), _number(folder / "pids.current"))
        time.sleep(0.005)
    seen.cpus = (_cpu_time(vmm) - used) / (time.monotonic() - began)
    return seen


def _ask(arena: Arena, seen: Seen) -> None:
    for _ in range(2):
        start = time.monotonic()
        with contextlib.suppress(BoxError):
            arena.home.run("get", seconds=10)
        seen.gets.append(time.monotonic() - start)


def _cpu_time(pid: int) -> float:
    """User and system time of a process with all its threads (proc_pid_stat(5), 14 and 15)."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _group(arena: Arena) -> dict[str, Path]:
    at = groups.folders(f"/proc/{arena.vmm(NAME)}")
    return {
        name: at.get(name, at.get("v2", Path("/nowhere"))) for name in ("pids", "memory", "cpu")
    }


def _number(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


@contextlib.contextmanager
def _busy(arena: Arena, script: str) -> Iterator[None]:
    """The guest runs `script`; all that it started there ends when we hang up."""
    words = ("exec", "--timeout", "60s", NAME, "--", "sh", "-c", script)
    with subprocess.Popen(
        [*arena.home.box, *words],
        env=arena.home.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        try:
            time.sleep(1.0)  # until it has begun
            if running.poll() is not None:
                raise Failed(f"box exec ended with {running.returncode}: no load was made")
            yield
        finally:
            running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(5)
            running.kill()


def _said(quiet: Seen, seen: Seen) -> str:
    factor = seen.spawn / quiet.spawn
    return (
        f"spawning takes {seen.spawn * 1000:.1f} ms (95th percentile, {factor:.1f} times the quiet"
        f" one), box get {max(seen.gets):.1f} s"
    )


def _trouble(arena: Arena, quiet: Seen, seen: Seen) -> str:
    """Why the host is not itself in this window; empty when it is."""
    factor, seconds = SPAWN_FACTOR * arena.home.scale, GET_SECONDS * arena.home.scale
    if seen.spawn > factor * quiet.spawn:
        return f"{_said(quiet, seen)}: more than {factor:g} times"
    if max(seen.gets) > seconds:
        return f"{_said(quiet, seen)}: more than {seconds:g} s"
    return ""


def _bearable(arena: Arena, quiet: Seen, windows: list[Seen], name: str) -> str:
    """Failed when the host was itself in fewer than CALM windows; what it was like, in words."""
    arena.measured[name] = {
        "quiet_ms": round(quiet.spawn * 1000, 2),
        "spawn_ms": [round(each.spawn * 1000, 2) for each in windows],
        "get_seconds": [round(max(each.gets), 2) for each in windows],
        "guest_cpus": [round(each.cpus, 2) for each in windows],
    }
    trouble = [said for each in windows if (said := _trouble(arena, quiet, each))]
    if len(windows) - len(trouble) < CALM:
        raise Failed(f"{trouble[-1]}, in {len(trouble)} of {len(windows)} windows")
    cpus = sum(each.cpus for each in windows) / len(windows)
    if cpus < BUSY_SHARE * _cpus():
        raise Unproved(f"the guest used {cpus:.1f} of {_cpus()} CPUs only: no load was made")
    middle = sorted(windows, key=lambda each: each.spawn)[len(windows) // 2]
    return (
        f"{_said(quiet, middle)}, in the middle one of {len(windows)} windows, while the guest used"
        f" {cpus:.1f} of its {_cpus()} CPUs"
    )


@check(
    "load.forks", "a fork bomb in the guest leaves the host responsive, within pids and CPU limits"
)
def forks(arena: Arena) -> str:
    quiet = _quiet(arena)
    with _busy(arena, FORKS):
        windows = _watch(arena, quiet)
    found, pids = groups.limits(arena.vmm(NAME)), max(each.pids for each in windows)
    if found.pids is None or pids > found.pids:
        raise Failed(f"it had {pids} tasks on the host, the limit is {found.pids}")
    if found.cpus is None or found.cpus > _cpus() + 1:
        raise Failed(f"its quota is {found.cpus} CPUs for {_cpus()} virtual ones")
    used = max(each.cpus for each in windows)
    if used > found.cpus * 1.1:
        raise Failed(f"it used {used:.1f} CPUs, its quota is {found.cpus:g}")
    said = _bearable(arena, quiet, windows, "load.forks")
    return f"{said}; {pids} of {found.pids} tasks on the host, quota {found.cpus:g} CPUs"


@check("load.memory", "a guest that takes all its memory takes none beyond its limit from the host")
def memory(arena: Arena) -> str:
    quiet = _quiet(arena)
    vmm = arena.vmm(NAME)
    with _busy(arena, HOG):
        windows = _watch(arena, quiet)
        limit = groups.limits(vmm).memory
        peak = _peak(_group(arena)["memory"])
    if limit is None or limit > 2 * RAM_MIB * MIB + 512 * MIB:
        raise Failed(f"its memory limit is {limit}")
    if peak > limit:
        raise Failed(f"it took {peak / MIB:.0f} MiB, its limit is {limit / MIB:.0f} MiB")
    said = _bearable(arena, quiet, windows, "load.memory")
    if peak < RAM_MIB * MIB / 2:
        raise Unproved(f"it took {peak / MIB:.0f} MiB only, of {RAM_MIB}: its memory was not used")
    return f"at most {peak / MIB:.0f} MiB of {limit / MIB:.0f} MiB; {said}"


def _peak(folder: Path) -> int:
    """The most a group ever held, where the kernel counts it; else what it holds."""
    names = ("memory.max_usage_in_bytes", "memory.peak", "memory.current", "memory.usage_in_bytes")
    return next((value for name in names if (value := _number(folder / name))), 0)


@check("load.disk", "a guest that fills its disk fills no more of the host's than that disk's size")
def disk(arena: Arena) -> str:
    quiet = _quiet(arena)
    file = arena.home.path / "disks" / NAME / "base.raw"
    with _busy(arena, FILLER):
        windows = _watch(arena, quiet)
        deadline = time.monotonic() + FILL_SECONDS * arena.home.scale
        while (facts := os.stat(file)).st_blocks * 512 < FILLED * DATA_MIB * MIB:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
    used, most = facts.st_blocks * 512, DATA_MIB * MIB
    others = [path for path in file.parent.iterdir() if path.stat().st_size > most]
    if facts.st_size > most or used > most + MIB or others:
        raise Failed(f"its disk takes {used / MIB:.0f} of {facts.st_size / MIB:.0f} MiB {others}")
    said = _bearable(arena, quiet, windows, "load.disk")
    if used < FILLED * most:
        raise Unproved(f"it filled {used / MIB:.0f} MiB only, of {DATA_MIB}")
    return f"{used / MIB:.0f} MiB of the host's disk, its size is {most / MIB:.0f} MiB; {said}"


@check("load.answers", "after all that the sandbox answers again, by itself or mended")
def answers(arena: Arena) -> str:
    _quiet(arena)
    word, began, before = secrets.token_hex(8), time.monotonic(), arena.vmm(NAME)
    limit = MENDED_SECONDS * arena.home.scale
    while time.monotonic() < began + limit:
        with contextlib.suppress(BoxError):
            done = arena.home.run("exec", NAME, "--", "echo", word, seconds=20, check=False)
            if done.stdout.split() == [word.encode()]:
                how = "the same machine" if arena.vmm(NAME) == before else "another machine"
                return f"{how} answers after {time.monotonic() - began:.1f} s"
        time.sleep(0.5)
    status, reason = arena.home.condition(NAME, "Ready")
    raise Failed(f"no command works {limit:g} s later; Ready is {status} ({reason})")
