"""The part of a network that lies in an ordinary user's namespaces: read, on every pass.

It runs in a process of its own that has joined the user namespace and ends when it has answered
(`innerworker`), so it moves itself from one network namespace into the next. Nothing of it changes
anything, and nothing of it needs pyroute2, which would make each fork of that process dear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reconcilers.network import links, readlinks, tables
from reconcilers.network.nftjson import Table
from reconcilers.network.wanted import MIDDLE_TABLE, Wanted


@dataclass(frozen=True, slots=True)
class Found:
    """`lines` by item and `tap` as `state` writes them. `wrong` says how the rules differ, empty
    when they do not; `generation` is nftables' own number of when they were looked at, `counts`
    the packets of each counter. Without `uplink` pasta's end of the tap is closed.
    """

    lines: dict[str, list[str]]
    tap: list[str]
    wrong: str
    generation: int
    counts: dict[str, int]
    uplink: bool


def observe(
    wanted: Wanted, made: Callable[[Wanted], Table], known: int, enter: Callable[[str], None]
) -> Found:
    """`known` is the generation at which the rules were right last, 0 for never; `made` gives the
    table as it must be, and is asked when that is over. `enter` moves the process into a namespace
    by its name.
    """
    with readlinks.worded("read"):
        found = readlinks.read_inner(wanted, enter)
    now = tables.generation()
    return Found(
        lines={item: sorted(lines) for item, lines in found.lines.items()},
        tap=sorted(found.tap),
        wrong="" if known and now == known else difference(made(wanted)),
        generation=now,
        counts=tables.counts(MIDDLE_TABLE),
        uplink=bool(links.number_of(wanted.uplink)),
    )


def difference(made: Table) -> str:
    """How the calling thread's namespace's table differs from this one, empty when it does not."""
    found = tables.listing(made.name)
    if found is None:
        return "there is no table"
    return "" if tables.Comparison().same(made, found) else "the table holds other rules"
