"""The part of a network that lies in an ordinary user's namespaces: read, on every pass.

By what was opened inside them (`innerviews`), so no process enters them for it. Nothing of it
changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reconcilers.network import readlinks
from reconcilers.network.innerviews import View
from reconcilers.network.wanted import MIDDLE_TABLE, Wanted


@dataclass(frozen=True, slots=True)
class Found:
    """`lines` by item and `tap` as `state` writes them. `wrong` says how the rules differ, empty
    when they do not; `generation` is nftables' own number of when they were looked at, `counts`
    the packets of each counter. Without `uplink` pasta's end of the tap is closed.
    """

    lines: dict[str, frozenset[str]]
    tap: frozenset[str]
    wrong: str
    generation: int
    counts: dict[str, int]
    uplink: bool


def observe(
    wanted: Wanted, view: View, known: int, compare: Callable[[], tuple[str, int]]
) -> Found:
    """`known` is the generation at which the rules were right last, 0 for never. When that is over,
    `compare` says how they differ, and of which generation that is true.

    Raises HostError, OSError.
    """
    found, uplink = readlinks.read_inner(wanted, view.vmm, view.middle)
    now, wrong = view.netfilter.generation(), ""
    if not known or now != known:
        wrong, now = compare()
    return Found(
        lines=found.lines,
        tap=found.tap,
        wrong=wrong,
        generation=now,
        counts=view.netfilter.counts(MIDDLE_TABLE),
        uplink=uplink,
    )
