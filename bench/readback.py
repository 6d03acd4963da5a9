"""Reads one running VMM back, again and again, and prints what each time cost in CPU.

A process of its own, started in the network namespace of the controller whose sandbox it is, as
the user who runs that: `python -m bench.readback HOME NAME COUNT TIMES APART`. It calls what a pass
calls, and changes nothing. It prints a JSON object of lists of milliseconds, COUNT of them, each
the mean of TIMES readings: "jail", "first" (the seccomp program is not known yet), "whole" (jail
and network). APART seconds lie between two. The processes that an ordinary user's readings need are
counted too; the kernel tells their CPU by hundredths of a second, so TIMES must be many there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from controller.home import read_home
from controller.records import Record
from controller.store import Store
from controller.wiring import build_host, load_config
from reconcilers import launchrecord
from reconcilers.confinement import readjail
from reconcilers.observe import disk_bytes, read_confinement


def main(words: list[str]) -> int:
    home, name = Path(words[0]), words[1]
    count, times, apart = int(words[2]), int(words[3]), float(words[4])
    layout = read_home(home)
    assert layout is not None, f"{home} is no home"
    host = build_host(layout, load_config(layout))
    record = launchrecord.read(layout.launch_record(name))
    kept = Store(layout).load(name)
    assert record is not None and isinstance(kept, Record) and kept.spec is not None
    box, live, names = kept.spec, record, host.names(name)
    host.claims()
    uid, size = host.claimed_uid(name, str(box.isolation)), disk_bytes(layout, name)

    def jail() -> None:
        found = read_confinement(host, name, box, live, uid, size)
        assert all(each.ok for each in found), [each for each in found if not each.ok]

    def first() -> None:
        readjail._programs.cache_clear()
        jail()

    def network() -> None:
        found = host.networks.observe(names, box, live.pid)
        assert found.readings and all(each.ok for each in found.readings), found

    def whole() -> None:
        jail()
        network()

    works = {"jail": jail, "first": first}
    if box.network != "none":
        works["whole"] = whole
    result = {name: _costs(work, count, times, apart) for name, work in works.items()}
    print(json.dumps(result))
    return 0


def _costs(work: Callable[[], None], count: int, times: int, apart: float) -> list[float]:
    """Milliseconds of one; the first two load modules and start processes."""
    work()
    work()
    helpers = _children()
    found = []
    for _ in range(count):
        before = _cpu(helpers)
        for _ in range(times):
            work()
            time.sleep(apart)
        found.append((_cpu(helpers) - before) * 1000 / times)
    return found


def _children() -> list[int]:
    """Processes that this one has started and that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if _fields(path)[1] == str(os.getpid()):
                found.append(int(path.parent.name))
    return found


def _fields(path: Path) -> list[str]:
    """proc_pid_stat(5), from the third field on."""
    return path.read_text().rpartition(")")[2].split()


def _cpu(helpers: Sequence[int]) -> float:
    """CPU seconds of all threads of this process, of its helpers and of those they waited for."""
    ticks = 0
    for pid in helpers:
        # utime, stime, cutime and cstime are fields 14 to 17
        ticks += sum(map(int, _fields(Path(f"/proc/{pid}/stat"))[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
