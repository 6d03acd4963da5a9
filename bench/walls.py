"""What the walls cost: a change noticed, the jail, the escape suite."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from bench import subject
from bench.line import SMALL
from bench.measure import Row, Target, ratios
from tests.vm.harness import BOX, ROOT, Home, until
from tests.vm.jailed import BARE, QEMU, jail

CHANGED = 7  # sandboxes, all changed at once: each is looked at by its own timer
NOTICED_SECONDS = 35.0
SUITE_SECONDS = 240.0


def changed(repeat: int) -> list[Row]:
    """From a limit raised by hand, which wakes nobody, to the time stamp of the event."""
    count = max(repeat, CHANGED)
    with subject.new_home() as home:
        names = [f"c{number:02d}" for number in range(count)]
        for name in names:
            home.put(name, SMALL)
            home.ready(name, 300)
        subject.wait_quiet(subject.pid_of(home))
        begun = time.time()
        for name in names:
            for group in home.cgroups(name):
                if (group / "pids.max").exists():
                    (group / "pids.max").write_text("max")
        delays = [_drift(home, name) - begun for name in names]
    return [Row("changed", "by hand, to its event", "s", tuple(delays), Target(NOTICED_SECONDS))]


def _drift(home: Home, name: str) -> float:
    """When (Unix time, seconds) the drift of its process limit was noticed."""
    path = home.path / "observed" / name / "events.jsonl"

    def found() -> list[str]:
        time.sleep(0.1)
        events = (json.loads(line) for line in path.read_text().splitlines())
        return [e["time"] for e in events if e["kind"] == "drift" and "cgroup.pids" in e["message"]]

    noticed = until(found, NOTICED_SECONDS * 2, f"the drift of {name}; {home.log()}")
    return datetime.fromisoformat(noticed[0]).timestamp()


def overhead(repeat: int) -> list[Row]:
    """From the call to the VMM's own program running: in the jail, and by a plain exec.

    A launch is mostly the start of an interpreter, so one that does nothing is told too: on a busy
    host the two are slow together.
    """
    found: dict[str, list[float]] = {"jailed": [], "cpu": [], "plain": [], "interpreter": []}

    def jailed() -> None:
        before = _cpu()
        with jail() as made:
            found["jailed"].append(made.start_bare().seconds * 1000)
            found["cpu"].append((_cpu() - before) * 1000)

    def plain() -> None:
        found["plain"].append(_plain() * 1000)

    def interpreter() -> None:
        begun = time.monotonic()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        found["interpreter"].append((time.monotonic() - begun) * 1000)

    for turn in range(max(repeat, 15)):
        for part in (jailed, plain, interpreter)[:: 1 if turn % 2 else -1]:
            part()
    launches = tuple(found["jailed"])
    more = tuple(a - b for a, b in zip(launches, found["plain"], strict=True))
    return [
        Row("jail", "launch to exec, in the jail", "ms", launches),
        Row("jail", "exec without a jail", "ms", tuple(found["plain"])),
        Row("jail", "what the jail adds", "ms", more, Target(60)),
        Row("jail", "CPU of the launcher and its caller", "ms", tuple(found["cpu"])),
        Row("jail", "an interpreter, start to end", "ms", tuple(found["interpreter"])),
        Row("jail", "a launch over an interpreter", "x", ratios(launches, found["interpreter"])),
    ]


def _cpu() -> float:
    """CPU seconds of this process and of its children that have ended: launchers."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _plain() -> float:
    """posix_spawn returns once the program has been executed."""
    null: Sequence[tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)
    ]
    begun = time.monotonic()
    pid = os.posix_spawn(QEMU, [QEMU, *BARE], {}, file_actions=null)
    taken = time.monotonic() - begun
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return taken


def suite(repeat: int) -> list[Row]:
    """One whole run of the escape suite on strict sandboxes; it must find nothing."""
    del repeat  # it is minutes, and has its own repetitions where a chance is involved
    with tempfile.TemporaryDirectory(prefix="boxbench-") as scratch:
        command, report = Path(scratch, "box"), Path(scratch, "report.json")
        command.write_text(f'#!/bin/sh\ncd {ROOT} && exec {" ".join(BOX)} "$@"\n')
        command.chmod(0o755)
        argv = [str(ROOT / "security/escape-test.sh"), str(command), "strict"]
        begun = time.monotonic()
        done = subprocess.run(
            [*argv, "--json", str(report)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        taken = time.monotonic() - begun
    if done.returncode != 0:
        raise AssertionError(f"the suite found something: {done.stdout[-3000:]}")
    return [Row("suite", "escape suite, strict", "s", (taken,), Target(SUITE_SECONDS))]
