"""How many seccomp filters a process has, and how many it must have: its launch's and its own.

The kernel shows the programs to root alone, their number to everybody. A number is no program: it
says that nothing is missing, not what is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from reconcilers.confinement import procfile
from reconcilers.confinement.atlaunch import FILTERS_KEY
from specs.reading import Reading

FIELD = "Seccomp_filters"  # proc(5), since Linux 5.9
_POLL_SECONDS = 0.005


def count(status: Mapping[str, str]) -> int:
    """Of the thread that these fields of /proc/PID/status are of."""
    text = status.get(FIELD, "0")
    return int(text) if text.isdigit() else 0


def of(pid: int) -> int | None:
    """Of the main thread of a process; None when it has ended."""
    try:
        found = procfile.fields(f"/proc/{pid}/status")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if found["State"][:1] in "ZX" else count(found)  # one that nobody has reaped yet


def at_launch(readings: Iterable[Reading]) -> int:
    """How many a process began with, by what its launch recorded: ours, and those over ours."""
    found = (each.want for each in readings if (each.layer, each.item) == FILTERS_KEY)
    return max(1, int(next((each for each in found if each.isdigit()), "1")))


async def all_loaded(pid: int, readings: Iterable[Reading], own: int, seconds: float) -> bool:
    """Whether a process that was just launched has loaded its `own` filters on top, waiting up to
    `seconds` for it; False as well when it has ended.
    """
    wanted, limit = at_launch(readings) + own, time.monotonic() + seconds
    while (found := of(pid)) is not None and time.monotonic() < limit:
        if found >= wanted:
            return True
        await asyncio.sleep(_POLL_SECONDS)
    return False
