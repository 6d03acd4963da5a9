"""What a guest says that it did, or would do, with changes: pure decoding of hostile bytes.

`PROTOCOL.md` describes them. Paths stay byte for byte the guest's: whoever shows one makes it safe
first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specs.errors import ProtocolError

SIZE_MAX = 1 << 20  # bytes; the agent lists half of that and counts the rest
_HEAD = re.compile(rb"=([0-9]{1,18}) ([0-9]{1,18})")
_LETTERS = b"AMDT"


@dataclass(frozen=True)
class Conflict:
    """What both sides did to one path: A added, M modified, D deleted, T made another type."""

    fork: str
    parent: str
    path: bytes


@dataclass(frozen=True)
class Merged:
    """`taken`: how many changes /data got, or would get; `total`: how many conflicts there are, of
    which `conflicts` are listed.
    """

    taken: int
    total: int
    conflicts: tuple[Conflict, ...] = ()


NOTHING = Merged(0, 0)


def count(told: bytes) -> int:
    """A decimal number. Raises ProtocolError."""
    if not told.isdigit() or len(told) > 18:
        raise ProtocolError("the guest sent no number of changes")
    return int(told)


def parse(told: bytes) -> Merged:
    """What MERGE says. Raises ProtocolError for anything else."""
    head, *listed = told.split(b"\0")
    numbers = _HEAD.fullmatch(head)
    if numbers is None or not listed or listed[-1]:
        raise ProtocolError("the guest did not say what became of the changes")
    found = tuple(map(_conflict, listed[:-1]))
    total = int(numbers[2])
    if len(found) > total:
        raise ProtocolError("the guest listed more conflicts than it counted")
    return Merged(int(numbers[1]), total, found)


def _conflict(raw: bytes) -> Conflict:
    path = raw[3:]
    if len(raw) < 4 or raw[0] not in _LETTERS or raw[1] not in _LETTERS or raw[2:3] != b"/":
        raise ProtocolError("the guest listed a conflict that is none")
    if any(part in (b"", b"..") for part in path.split(b"/")):
        raise ProtocolError("the guest listed a path that is none")
    return Conflict(chr(raw[0]), chr(raw[1]), path)
