"""One sandbox: how long from a file to Ready, from a change to a pass, from a death to a notice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from bench import subject
from bench.bare import Bare
from bench.measure import Row, Target, ratios
from tests.vm.harness import Home, until

RUNNING = "accel: tcg\n"  # the defaults of a Boxfile: 2 vCPUs, 512 MiB, 1 GiB of /data
SMALL = "accel: tcg\ncpus: 1\nram_mib: 192\ndata: {size_mib: 32}\n"
MANY = 500


def ready(repeat: int) -> list[Row]:
    """From the Boxfile's rename into the folder to Ready in the report, over bare QEMU."""
    ours: list[float] = []
    bare: list[float] = []
    with subject.new_home() as home:
        _to_ready(home, "first")  # builds the image and the initramfs, once per host
        yardstick = Bare.like(home, "first")
        _stop(home, "first")

        def measure_ours(turn: int) -> None:
            ours.append(_to_ready(home, f"b{turn}"))
            _stop(home, f"b{turn}")

        def measure_bare(turn: int) -> None:
            bare.append(asyncio.run(yardstick.boot()))

        halves: list[Callable[[int], None]] = [measure_ours, measure_bare]
        for turn in range(repeat):
            for half in halves if turn % 2 else reversed(halves):
                subject.wait_quiet(subject.pid_of(home))
                subject.wait_host_idle()
                half(turn)
    return [
        Row("ready", "Boxfile dropped to Ready", "s", tuple(ours)),
        Row("ready", "bare QEMU to the agent's word", "s", tuple(bare)),
        Row("ready", "Ready over bare QEMU", "x", ratios(ours, bare), Target(1.25)),
    ]


def _to_ready(home: Home, name: str) -> float:
    report = home.path / "observed" / name / "observed.toml"
    begun = time.monotonic()
    home.put(name, RUNNING)
    seen = 0
    while time.monotonic() < begun + 90:
        # Only a changed report is parsed: the poll must not compete with the guest.
        now = report.stat().st_mtime_ns if report.exists() else 0
        if now != seen:
            seen = now
            if home.condition(name, "Ready") == ("True", "GuestReady"):
                return time.monotonic() - begun
        time.sleep(0.003)
    raise AssertionError(f"{name} is not Ready after 90 s\n{home.report(name)}\n{home.log()}")


def _stop(home: Home, name: str) -> None:
    """Stopped, not deleted: many deletions in a minute are a matter for the prune guard."""
    home.put(name, subject.STOPPED)
    until(lambda: not home.vmms(name), 60, f"{name} is stopped; {home.log()}")


def noticed(repeat: int) -> list[Row]:
    """From SIGKILL of a VMM to the time stamp of the controller's event."""
    delays = []
    dead = 0
    with subject.new_home() as home:
        home.put("victim", SMALL)
        for _ in range(repeat):
            pid = _ready_pid(home, "victim", dead)
            # A pass with nothing to do ends the memory of earlier deaths, which would delay this
            # one's answer.
            subject.cost_of(subject.pid_of(home), home.look_again)
            count = len(_events(home, "victim", "exited"))
            killed = time.time()
            os.kill(pid, signal.SIGKILL)
            delays.append((_next_event(home, "victim", "exited", count) - killed) * 1000)
            dead = pid
    return [Row("noticed", "VMM killed to event", "ms", tuple(delays), Target(100))]


def _ready_pid(home: Home, name: str, dead: int) -> int:
    """The PID of a VMM whose guest answers; for a moment the report still speaks of `dead`."""

    def found() -> int:
        pid = int(home.report(name).get("vmm", {}).get("pid", 0))
        ready = home.condition(name, "Ready") == ("True", "GuestReady")
        return pid if ready and pid != dead else 0

    return int(until(found, 90, f"{name} is Ready; {home.log()}"))


def saved(repeat: int) -> list[Row]:
    """From the Boxfile's rename to the event of its acceptance, and to the pass's report."""
    rows = []
    with subject.new_home() as home:
        subject.fill(home, 1)
        rows += _saved_rows(home, "1 sandbox", repeat)
        subject.fill(home, MANY)
        rows += _saved_rows(home, f"{MANY} sandboxes", repeat)
    return rows


def _saved_rows(home: Home, label: str, repeat: int) -> list[Row]:
    name = "s0000"
    report = home.path / "observed" / name / "observed.toml"
    accepted, reported = [], []
    for _ in range(repeat):
        subject.wait_quiet(subject.pid_of(home))
        count = len(_events(home, name, "configured"))
        generation = home.report(name)["generation"]
        limit = f"timeout_seconds: {10 + count}\n"
        begun = time.time()
        home.put(name, subject.STOPPED + limit)
        while home.report(name).get("generation", 0) <= generation:
            if time.time() > begun + 30:
                raise AssertionError(f"no pass after 30 s\n{home.log()}")
            time.sleep(0.002)
        reported.append((report.stat().st_mtime_ns / 1e9 - begun) * 1000)
        accepted.append((_next_event(home, name, "configured", count) - begun) * 1000)
    return [
        Row("saved", f"saved to accepted, {label}", "ms", tuple(accepted)),
        # The pass writes the report, so it had begun before; this is an upper bound.
        Row("saved", f"saved to its pass's report, {label}", "ms", tuple(reported), Target(100)),
    ]


def _events(home: Home, name: str, kind: str) -> list[dict[str, Any]]:
    path: Path = home.path / "observed" / name / "events.jsonl"
    if not path.exists():
        return []
    events = (json.loads(line) for line in path.read_text().splitlines())
    return [event for event in events if event["kind"] == kind]


def _next_event(home: Home, name: str, kind: str, before: int) -> float:
    """When (Unix time, seconds) the next event of `kind` after the first `before` happened."""

    def found() -> list[dict[str, Any]]:
        return _events(home, name, kind)[before:]

    event = until(found, 60, f"{name} has another event {kind}; {home.log()}")[0]
    return datetime.fromisoformat(event["time"]).timestamp()
