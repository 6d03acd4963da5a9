"""Records of a host that differed from its Boxfile, and of what happened.

Written by the loop, shown by the command line, read back by nobody. It must not read a clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference. Times are ISO-8601 UTC; `corrected` is empty while the difference is open."""

    field: str
    desired: str
    observed: str
    first_seen: str
    action: str
    corrected: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a sandbox's history. `time` is ISO-8601 UTC."""

    time: str
    kind: str
    message: str
    generation: int
