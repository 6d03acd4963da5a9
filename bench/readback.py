"""Reads one running VMM back, again and again, and prints what each time cost in CPU.

A process of its own, started in the network namespace of the controller whose sandbox it is:
`python -m bench.readback HOME NAME COUNT`. It calls what a pass calls, and changes nothing. It
prints a JSON object of lists of milliseconds: "jail", "first" (the seccomp program is not known
yet), "network".
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from controller.home import read_home
from controller.records import Record
from controller.store import Store
from controller.wiring import build_host, load_config
from reconcilers import launchrecord
from reconcilers.confinement import readjail
from reconcilers.observe import disk_bytes, read_confinement


def main(words: list[str]) -> int:
    home, name, count = Path(words[0]), words[1], int(words[2])
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
        assert found.present and all(each.ok for each in found.readings), found

    result = {"jail": _costs(jail, count), "first": _costs(first, count)}
    if box.network != "none":
        result["network"] = _costs(network, count)
    print(json.dumps(result))
    return 0


def _costs(work: Callable[[], None], count: int) -> list[float]:
    """CPU of all threads of this process, milliseconds; the first two times load modules."""
    work()
    work()
    found = []
    for _ in range(count):
        before = time.process_time()
        work()
        found.append((time.process_time() - before) * 1000)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
