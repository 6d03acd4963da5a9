"""The controller under measurement, seen from outside: its CPU time, memory, wake-ups and writes.

Everything is read from the kernel, nothing from the controller's own word.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.vm.harness import Home, home_with_controller, until

STOPPED = "state: stopped\n"
# A pass takes milliseconds; a controller that used less than this for so long has finished them.
QUIET_SECONDS, QUIET_CPU = 0.4, 0.001
_FIELDS = re.compile(r"^(\w+):\s+(\d+)", re.MULTILINE)

Snapshot = dict[str, tuple[int, int, int, int]]


@contextmanager
def new_home() -> Iterator[Home]:
    """A fresh home with a running controller; nothing of it is left afterwards."""
    with TemporaryDirectory(prefix="boxbench-") as folder, home_with_controller(Path(folder)) as h:
        yield h


def pid_of(home: Home) -> int:
    assert home.controller is not None
    return home.controller.pid


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, also of ended ones; nanosecond resolution.

    clock_getcpuclockid(3): the clock of another process is its PID, inverted, shifted left by
    three, with the bits of CPUCLOCK_SCHED.
    """
    return time.clock_gettime(((~pid) << 3) | 2)


def ended_seconds(pid: int) -> float:
    """CPU time of all children of a process that have ended and that it has asked for, and theirs,
    in hundredths of a second; proc_stat(5), cutime and cstime.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def resident_kib(pid: int) -> int:
    """VmRSS of /proc/PID/status, KiB."""
    return _fields(Path(f"/proc/{pid}/status"))["VmRSS"]


def wakeups(pid: int) -> int:
    """How often threads of a process have slept and been woken since they started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(_fields(task / "status").get("voluntary_ctxt_switches", 0) for task in tasks)


def _fields(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in _FIELDS.findall(path.read_text())}


def wait_quiet(pid: int, limit: float = 120.0) -> float:
    """Wait until the process has stopped using CPU; its CPU time then, in seconds."""
    end = time.monotonic() + limit
    before = cpu_seconds(pid)
    while True:
        time.sleep(QUIET_SECONDS)
        now = cpu_seconds(pid)
        if now - before < QUIET_CPU:
            return now
        if time.monotonic() > end:
            raise TimeoutError(f"the controller is still busy after {limit:g} s")
        before = now


def wait_host_idle(limit: float = 5.0) -> bool:
    """Wait until the host's CPUs are at least 85 % idle; False when they were not within `limit`
    seconds.

    A boot that shares its CPUs with somebody's compiler measures the compiler.
    """
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before = _host_ticks()
        time.sleep(0.5)
        idle, total = (b - a for a, b in zip(before, _host_ticks(), strict=True))
        if idle >= 0.85 * total:
            return True
    return False


def _host_ticks() -> tuple[int, int]:
    """Idle and all ticks since boot; proc_stat(5): the fourth number is idle time."""
    numbers = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return numbers[3], sum(numbers)


def cost_of(pid: int, cause: Callable[[], None]) -> float:
    """CPU seconds the process spends because of `cause`, until it is quiet again."""
    before = wait_quiet(pid)
    cause()
    time.sleep(0.05)
    return wait_quiet(pid) - before


def snapshot(*folders: Path) -> Snapshot:
    """Every file and folder below, with what a write, a rename or a touch would change."""
    found: Snapshot = {}
    for folder in folders:
        for top, _, names in os.walk(folder):
            for path in (top, *(os.path.join(top, name) for name in names)):
                facts = os.lstat(path)
                found[path] = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    return found


def written(before: Snapshot, after: Snapshot) -> list[str]:
    """Paths that appeared, vanished or changed, except the log that the harness redirects."""
    paths = before.keys() | after.keys()
    return sorted(p for p in paths if before.get(p) != after.get(p) and "controller.log" not in p)


def fill(home: Home, count: int) -> None:
    """Give the home `count` stopped sandboxes and wait until each has its report."""
    names = [f"s{number:04d}" for number in range(count)]
    for name in names:
        (home.boxes / f"{name}.box.yaml").write_text(STOPPED)
    until(lambda: _reported(home, names), 300, f"{count} sandboxes have a report; {home.log()}")
    wait_quiet(pid_of(home))


def _reported(home: Home, names: list[str]) -> bool:
    time.sleep(0.2)
    return all((home.path / "observed" / name / "observed.toml").exists() for name in names)


def require_passes(home: Home, count: int) -> None:
    """Fail unless a SIGHUP brings a pass over every sandbox: each makes its lost report anew."""
    names = [f"s{number:04d}" for number in range(count)]
    for name in names:
        (home.path / "observed" / name / "observed.toml").unlink()
    home.look_again()
    until(lambda: _reported(home, names), 120, "a SIGHUP passes over every sandbox")
    wait_quiet(pid_of(home))
