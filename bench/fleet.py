"""Many sandboxes: what a pass over settled ones costs, how it grows, what idling costs, memory."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench import subject
from bench.measure import Row, Target, ratios
from tests.vm.harness import Home

MANY = 500
FEW, MOST = 100, 1000
RUNNING, RUNNING_SECONDS = 20, 120.0
IDLE, IDLE_SECONDS = 20, 10.0
SMALL_VM = "accel: tcg\ncpus: 1\nram_mib: 128\ndata: {size_mib: 16}\n"
KIB = 1024


def passes(repeat: int) -> list[Row]:
    """CPU of one pass over each of 500 converged, stopped sandboxes, and what it writes."""
    with subject.new_home() as home:
        subject.fill(home, MANY)
        subject.require_passes(home, MANY)
        pid = subject.pid_of(home)
        before = subject.snapshot(home.path, home.runtime)
        costs = [subject.cost_of(pid, home.look_again) for _ in range(repeat)]
        changed = subject.written(before, subject.snapshot(home.path, home.runtime))
    return [
        Row(
            "passes",
            f"CPU per sandbox, {MANY} stopped",
            "ms",
            tuple(cost / MANY * 1000 for cost in costs),
            Target(2.0),
        ),
        Row("passes", "files written", "files", (float(len(changed)),), Target(0)),
    ]


def growth(repeat: int) -> list[Row]:
    """The cost per sandbox with 1000 sandboxes over that with 100, in interleaved pairs."""
    few: list[float] = []
    most: list[float] = []
    with ExitStack() as stack:
        homes = {count: stack.enter_context(subject.new_home()) for count in (FEW, MOST)}
        for count, home in homes.items():
            subject.fill(home, count)
        for turn in range(repeat):
            for count in (FEW, MOST) if turn % 2 else (MOST, FEW):
                home = homes[count]
                cost = subject.cost_of(subject.pid_of(home), home.look_again) / count
                (few if count == FEW else most).append(cost * 1000)
    return [
        Row("growth", f"CPU per sandbox, {FEW}", "ms", tuple(few)),
        Row("growth", f"CPU per sandbox, {MOST}", "ms", tuple(most)),
        # Linear growth is a ratio of 1; fixed costs make it less, a square term far more.
        Row("growth", f"per sandbox, {MOST} over {FEW}", "x", ratios(most, few), Target(1.25)),
    ]


def memory(repeat: int) -> list[Row]:
    """Resident memory of the controller with 1 and with 500 stopped sandboxes."""
    ones: list[float] = []
    each: list[float] = []
    for _ in range(repeat):
        with subject.new_home() as home:
            pid = subject.pid_of(home)
            subject.fill(home, 1)
            _pass(home)
            one = subject.resident_kib(pid)
            subject.fill(home, MANY)
            _pass(home)
            ones.append(one / KIB)
            each.append((subject.resident_kib(pid) - one) / (MANY - 1))
    return [
        Row("memory", "resident, 1 stopped", "MiB", tuple(ones), Target(80)),
        Row("memory", f"each more, up to {MANY}", "KiB", tuple(each), Target(30)),
    ]


def _pass(home: Home) -> None:
    subject.cost_of(subject.pid_of(home), home.look_again)


def idle(repeat: int) -> list[Row]:
    """What a controller with nothing to do costs: wake-ups and CPU, 20 stopped sandboxes."""
    with subject.new_home() as home:
        subject.fill(home, IDLE)
        pid = subject.pid_of(home)
        woken: list[float] = []
        used: list[float] = []
        for _ in range(repeat):
            count, cpu = subject.wakeups(pid), subject.cpu_seconds(pid)
            time.sleep(IDLE_SECONDS)
            woken.append((subject.wakeups(pid) - count) / IDLE_SECONDS)
            used.append((subject.cpu_seconds(pid) - cpu) / IDLE_SECONDS * 100)
    return [
        Row("idle", f"wake-ups per second, {IDLE} stopped", "1/s", tuple(woken)),
        Row("idle", f"CPU of one core, {IDLE} stopped", "%", tuple(used)),
    ]


def settled(repeat: int) -> list[Row]:
    """CPU of the controller over two minutes with 20 settled, running sandboxes, and its writes."""
    del repeat  # one window of two minutes already holds four passes over each
    with subject.new_home() as home:
        names = [f"r{number:02d}" for number in range(RUNNING)]
        for name in names:
            home.put(name, SMALL_VM)
            home.ready(name, 300)
        pid = subject.pid_of(home)
        home.look_again()
        # The guests' own start-up goes on for a while after the agent answers.
        time.sleep(15)
        before = subject.snapshot(home.path, home.runtime)
        cpu, begun = subject.cpu_seconds(pid), time.monotonic()
        time.sleep(RUNNING_SECONDS)
        share = (subject.cpu_seconds(pid) - cpu) / (time.monotonic() - begun) * 100
        changed = subject.written(before, subject.snapshot(home.path, home.runtime))
        changed = [path for path in changed if "/disks/" not in path]  # the guests' own /data
        unready = [n for n in names if home.condition(n, "Ready")[0] != "True"]
        if unready:
            raise AssertionError(f"not settled: {', '.join(unready)}\n{home.log()}")
    return [
        Row("settled", f"CPU of one core, {RUNNING} running", "%", (share,), Target(0.5)),
        Row("settled", "files written", "files", (float(len(changed)),), Target(0)),
    ]
