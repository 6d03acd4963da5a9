"""A sandbox and QEMU started by hand move the same bytes in turns: how long each takes.

CPU is told beside the time: on a host that others use too it varies less, and shows whether a
difference is the product's or the scheduler's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from bench import subject
from bench.measure import Row, Target, ratios
from tests.vm.harness import Home

# The goal is a throughput of at least 0.9; what is compared are times.
SLOWEST = 1 / 0.9


@dataclass
class Side:
    """`run` moves the bytes once and returns its seconds; `pids` are the processes that serve it:
    QEMU and its helpers, whose CPU is counted.
    """

    run: Callable[[], Awaitable[float]]
    pids: tuple[int, ...]
    times: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    async def once(self, *, counts: bool) -> None:
        before = self._cpu()
        seconds = await self.run()
        if counts:
            self.times.append(seconds)
            self.costs.append(self._cpu() - before)

    def _cpu(self) -> float:
        return sum(subject.cpu_seconds(pid) for pid in self.pids)


def members(home: Home, name: str) -> tuple[int, ...]:
    """QEMU and every helper of a running sandbox."""
    files = [group / "cgroup.procs" for group in home.cgroups(name)]
    return tuple(sorted({int(pid) for file in files for pid in file.read_text().split()}))


async def pairs(
    benchmark: str, what: str, mib: int, ours: Side, bare: Side, repeat: int
) -> Iterable[Row]:
    """Interleaved pairs in alternating order; `mib` are moved by one run of either side."""
    for turn in range(repeat + 1):
        for side in (ours, bare) if turn % 2 else (bare, ours):
            subject.wait_host_idle(1.0)
            # The first of each translates the guest's code and fills the caches.
            await side.once(counts=turn > 0)
    rates = [tuple(mib / seconds for seconds in side.times) for side in (ours, bare)]
    return (
        Row(benchmark, f"{what}, a sandbox", "MiB/s", rates[0]),
        Row(benchmark, f"{what}, QEMU by hand", "MiB/s", rates[1]),
        Row(benchmark, f"{what}, time over by hand", "x", ratios(ours.times, bare.times),
            Target(SLOWEST)),
        Row(benchmark, f"{what}, CPU over by hand", "x", ratios(ours.costs, bare.costs)),
    )  # fmt: skip
