"""What the walls cost: a readback, a change noticed, the jail, the escape suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from bench import subject
from bench.line import SMALL
from bench.measure import Row, Target
from tests.vm.cases import CaseHome, case_home
from tests.vm.harness import BOX, ROOT, Home, until
from tests.vm.jailed import BARE, QEMU, jail

READINGS = 50  # of milliseconds: many cost nothing
CHANGED = 7  # sandboxes, all changed at once: each is looked at by its own timer
NOTICED_SECONDS = 35.0
SUITE_SECONDS = 240.0
# An uplink that leads nowhere: nothing leaves the host, and the sandbox's own rules are all there.
UPLINK = (
    "ip link set lo up; ip link add up0 type veth peer name up1; ip link set up1 up; "
    "ip addr add 203.0.113.1/24 dev up0; ip link set up0 up; "
    "ip route add default via 203.0.113.254; echo 1 > /proc/sys/net/ipv4/ip_forward"
)


def readback(repeat: int) -> list[Row]:
    """CPU of one readback of a running VMM, without a network and with one and its rules."""
    count = max(repeat, READINGS)
    with subject.new_home() as home:
        plain = _readback(home, SMALL, count)
    inside = ["unshare", "--net", "sh", "-ec", f'{UPLINK}; exec "$@"', "sh"]
    with case_home(prefix=inside) as lone:
        bridged = _readback(lone, f"{SMALL}network: bridge\n", count)
    both = [a + b for a, b in zip(bridged["jail"], bridged["network"], strict=True)]
    return [
        Row("readback", "one VMM, CPU", "ms", tuple(plain["jail"]), Target(3)),
        Row("readback", "the first time", "ms", tuple(plain["first"]), Target(3)),
        Row("readback", "with network and rules", "ms", tuple(both), Target(18)),
    ]


def _readback(home: Home | CaseHome, boxfile: str, count: int) -> dict[str, list[float]]:
    home.put("read", boxfile)
    home.ready("read")
    subject.wait_quiet(subject.pid_of(home))
    argv = [sys.executable, "-m", "bench.readback", str(home.path), "read", str(count)]
    inside = ["nsenter", f"--net=/proc/{subject.pid_of(home)}/ns/net", *argv]
    done = subprocess.run(
        inside, env=home.env, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=120
    )
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


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
    """From the call to the VMM's own program running: in the jail, and by a plain exec."""
    jailed: list[float] = []
    plain: list[float] = []
    for turn in range(max(repeat, 15)):
        for half in (_jailed, _plain) if turn % 2 else (_plain, _jailed):
            (jailed if half is _jailed else plain).append(half() * 1000)
    more = tuple(a - b for a, b in zip(jailed, plain, strict=True))
    return [
        Row("jail", "launch to exec, in the jail", "ms", tuple(jailed)),
        Row("jail", "exec without a jail", "ms", tuple(plain)),
        Row("jail", "what the jail adds", "ms", more, Target(60)),
    ]


def _jailed() -> float:
    with jail() as made:
        return made.start_bare().seconds


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
