"""Whatever can change on a live VMM is changed by hand here, and put back without a restart.

The cases are the VMM's own readings: each one that says "in place" must have a way to change it
here, so none can be added without its test.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reconcilers.confinement import syscalls
from reconcilers.confinement.layers import LAYERS
from tests.vm.harness import READY, TINY, Home, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(120)]

Readings = dict[tuple[str, str], dict[str, Any]]
FILES = ("folder", "launch.json", "qmp.sock", "con.sock", "agent.sock")
CONTROL = ("memory", "swap", "pids", "cpu quota", "cpu period", "cpu weight", "frozen")
SCHEDULER = ("time slice",)
RLIMITS = ("core", "fsize", "memlock", "msgqueue", "nice", "nofile", "rtprio")


@pytest.fixture(scope="module")
def oak(shared_home: Home) -> Iterator[Home]:
    shared_home.put("oak", TINY)
    shared_home.ready("oak")
    yield shared_home
    assert shared_home.run("oak", "echo", "alive").stdout == b"alive\n"


def readings(home: Home) -> Readings:
    """What `box verify` reads now."""
    done = home.box("verify", "oak", "-o", "json", check=False)
    told = json.loads(done.stdout)
    return {(each["layer"], each["item"]): each for each in told["readings"]}


def mended(home: Home, layer: str, item: str, change: Callable[[], None]) -> None:
    """Change it, see that it shows, have it looked at, see it put back by the same VMM."""
    pid, known = home.pid("oak"), home.drift("oak")

    def right() -> dict[str, Any] | None:
        found = readings(home).get((layer, item), {"ok": False})
        return found if found["ok"] else None

    before = until(right, READY, "it is read as it must be")
    stuck = stopped(home)
    try:
        change()
    finally:
        stuck()
    home.look_again()
    drift = mended_since(home, f"{layer}.{item}", known)
    assert drift["desired"] == before["want"] and drift["observed"] != before["want"], drift
    after = readings(home)[(layer, item)]
    assert (after["ok"], after["got"]) == (True, before["got"])
    assert home.pid("oak") == pid


def mended_since(home: Home, field: str, known: list[dict[str, Any]]) -> dict[str, Any]:
    """The drift of this field that is not among the known ones, once it is corrected."""

    def found() -> dict[str, Any] | None:
        fresh = (each for each in home.drift("oak") if each not in known)
        right = (each for each in fresh if each["field"] == field and each.get("corrected"))
        return next(right, None)

    result: dict[str, Any] = until(found, 40, f"drift of {field} corrected; {home.log()}")
    return result


def stopped(home: Home) -> Callable[[], None]:
    """Hold the controller still while several files are changed; the result lets it go on."""
    assert home.controller is not None
    controller = home.controller.pid
    os.kill(controller, 19)  # SIGSTOP
    return lambda: os.kill(controller, 18)


def files_of(home: Home, *names: str) -> Iterator[Path]:
    for group in home.cgroups("oak"):
        yield from (group / name for name in names if (group / name).exists())


def file_of(home: Home, *names: str) -> Path:
    found = next(files_of(home, *names), None)
    if found is None:
        pytest.skip(f"this host has no {' and no '.join(names)}")
    return found


def raise_memory(home: Home) -> None:
    for path in files_of(home, "memory.memsw.limit_in_bytes", "memory.limit_in_bytes"):
        path.write_text(str(1 << 34))  # v1: the one with swap first, it is never the lower one
    for path in files_of(home, "memory.max"):
        path.write_text("max")


def allow_swap(home: Home) -> None:
    path = file_of(home, "memory.memsw.limit_in_bytes", "memory.swap.max")
    path.write_text(str(1 << 34))


def no_pids_limit(home: Home) -> None:
    file_of(home, "pids.max").write_text("max")


def no_cpu_quota(home: Home) -> None:
    path = file_of(home, "cpu.cfs_quota_us", "cpu.max")
    path.write_text("-1" if path.name == "cpu.cfs_quota_us" else "max 100000")


def other_cpu_period(home: Home) -> None:
    path = file_of(home, "cpu.cfs_period_us", "cpu.max")
    path.write_text("200000" if path.name == "cpu.cfs_period_us" else "200000 200000")


def other_cpu_weight(home: Home) -> None:
    """Of the group that holds all sandboxes of this host."""
    tops = [group.parent.parent for group in home.cgroups("oak")]
    found = [top / name for top in tops for name in ("cpu.shares", "cpu.weight")]
    next(path for path in found if path.exists()).write_text("300")


def freeze(home: Home) -> None:
    path = file_of(home, "freezer.state", "cgroup.freeze")
    path.write_text("FROZEN" if path.name == "freezer.state" else "1")


CHANGES: dict[str, Callable[[Home], None]] = {
    "memory": raise_memory,
    "swap": allow_swap,
    "pids": no_pids_limit,
    "cpu quota": no_cpu_quota,
    "cpu period": other_cpu_period,
    "cpu weight": other_cpu_weight,
    "frozen": freeze,
}


def test_every_reading_that_can_change_live_is_changed_here(oak: Home) -> None:
    live = {key for key, each in readings(oak).items() if each["mend"] == "in place"}
    known = {("sockets", item) for item in FILES}
    known |= {("cgroup", item) for item in CONTROL} | {("rlimits", item) for item in RLIMITS}
    known |= {("scheduler", item) for item in SCHEDULER}
    members = {(layer, item) for layer, item in live if item.startswith("member of ")}
    assert members and live - members - known == set()
    layers = {layer for layer, _ in live} - {"sockets"}
    assert layers == {each.name for each in LAYERS if each.mend == "in place"}


@pytest.mark.parametrize("item", CONTROL)
def test_a_limit_of_its_group_changed_by_hand_is_put_back(oak: Home, item: str) -> None:
    if item == "swap" and "not counted" in readings(oak)[("cgroup", "swap")]["got"]:
        pytest.skip("this kernel does not count swap")
    mended(oak, "cgroup", item, lambda: CHANGES[item](oak))


def test_a_vmm_moved_out_of_any_hierarchy_is_moved_back(oak: Home) -> None:
    for group in oak.cgroups("oak"):
        top = group.parent.parent.parent
        item = f"member of {top.name}"
        if ("cgroup", item) not in readings(oak):
            continue  # a hierarchy with no controller of ours, v2's on a hybrid host
        mended(oak, "cgroup", item, partial(move, oak.pid("oak"), top))
        assert str(oak.pid("oak")) in (group / "cgroup.procs").read_text().split()


def move(pid: int, to: Path) -> None:
    (to / "cgroup.procs").write_text(str(pid))


def set_limit(home: Home, item: str, soft: int, hard: int) -> None:
    """prlimit(2): without CAP_SYS_RESOURCE one needs the VMM's own identity, and lowers only."""
    pid, uid = home.pid("oak"), home.report("oak")["vmm"]["uid"]
    try:
        resource.prlimit(pid, getattr(resource, f"RLIMIT_{item.upper()}"), (soft, hard))
    except PermissionError:
        words = ("unlimited" if each < 0 else str(each) for each in (soft, hard))
        argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "prlimit"]
        argv += [f"--pid={pid}", f"--{item}={':'.join(words)}"]
        subprocess.run(argv, check=True, capture_output=True)


@pytest.mark.parametrize("item", RLIMITS)
def test_a_resource_limit_changed_by_hand_is_put_back(oak: Home, item: str) -> None:
    soft, hard = resource_limits(oak, item)
    other = (soft // 2, hard) if soft else (1, 1)
    try:
        mended(oak, "rlimits", item, lambda: set_limit(oak, item, *other))
    except subprocess.CalledProcessError:
        # a limit of nothing: here it can be raised by nobody, so it cannot drift
        assert hard == 0 and not raises_limits()
    assert resource_limits(oak, item) == (soft, hard)


def raises_limits() -> bool:
    """Whether root has CAP_SYS_RESOURCE on this host."""
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "CapEff" in x]
    return bool(int(line.split()[1], 16) >> 24 & 1)


def resource_limits(home: Home, item: str) -> tuple[int, int]:
    """(soft, hard) as the reading has them; -1 is no limit."""
    words = readings(home)[("rlimits", item)]["got"].split()
    soft, hard = (-1 if word == "unlimited" else int(word) for word in words)
    return soft, hard


@pytest.mark.parametrize("which", ["first thread", "virtual CPU"])
def test_a_time_slice_changed_by_hand_is_put_back(oak: Home, which: str) -> None:
    (item,) = SCHEDULER
    if "not known" in readings(oak)[("scheduler", item)]["got"]:
        pytest.skip("time slices begin with Linux 6.12")
    pid = oak.pid("oak")

    def change() -> None:
        thread = pid if which == "first thread" else busiest_thread(pid)
        syscalls.set_time_slice(thread, 1_000_000)

    mended(oak, "scheduler", item, change)
    assert time_slices(pid) == {10_000_000}


def busiest_thread(pid: int) -> int:
    """One that lasts: those that write to the disk for QEMU come and go."""

    def ticks(thread: str) -> int:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
            return int(stat[11]) + int(stat[12])  # proc(5): 14 utime, 15 stime
        return 0

    return int(max(os.listdir(f"/proc/{pid}/task"), key=ticks))


def time_slices(pid: int) -> set[int]:
    found = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            found.add(syscalls.time_slice(int(thread)))
    return found


@pytest.mark.parametrize("item", FILES)
def test_a_file_between_controller_and_vmm_opened_to_others_is_closed(oak: Home, item: str) -> None:
    path = Path(readings(oak)[("sockets", item)]["source"])
    mode = path.stat().st_mode & 0o7777
    mended(oak, "sockets", item, lambda: path.chmod(0o777))
    assert path.stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("item", FILES)
def test_a_file_between_controller_and_vmm_given_away_is_taken_back(oak: Home, item: str) -> None:
    path = Path(readings(oak)[("sockets", item)]["source"])
    mended(oak, "sockets", item, lambda: os.chown(path, 1234, 1234))
    assert (path.stat().st_uid, path.stat().st_gid) == (os.geteuid(), os.getegid())


def test_a_link_in_the_place_of_a_socket_is_not_followed(oak: Home, tmp_path: Path) -> None:
    """It replaces the VMM, because only a new one listens there again; last, for that reason."""
    canary = tmp_path / "canary"
    canary.write_text("mine")
    canary.chmod(0o644)
    pid, path = oak.pid("oak"), oak.runtime / "oak" / "con.sock"
    path.unlink()
    path.symlink_to(canary)
    oak.look_again()
    until(lambda: oak.pid("oak") not in (0, pid), READY, "another VMM")
    oak.mended("oak", "sockets.con.sock")
    assert (canary.stat().st_mode & 0o777, canary.read_text()) == (0o644, "mine")
    oak.ready("oak")


def test_a_hard_limit_that_was_lowered_for_good_replaces_the_vmm(oak: Home) -> None:
    """getrlimit(2): it goes up again only with CAP_SYS_RESOURCE, and then it is put back."""
    pid, before = oak.pid("oak"), resource_limits(oak, "nofile")
    known = oak.drift("oak")
    set_limit(oak, "nofile", 100, 100)
    oak.look_again()
    mended_since(oak, "rlimits.nofile", known)
    oak.ready("oak")
    assert resource_limits(oak, "nofile") == before
    assert (oak.pid("oak") == pid) is raises_limits()
