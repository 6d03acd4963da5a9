"""What a guest says that differs between two states of /data: an archive of changes as a listing.

It is taken for hostile, like every archive; nothing of it is written anywhere. Names are byte for
byte the guest's: whoever shows one makes it safe first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from agent.archive import Change, Kind, Reason, Record, Window, records
from reconcilers.guestfiles.notes import WORDS

KINDS = {Kind.FOLDER: "directory", Kind.TOP: "directory", Kind.SYMLINK: "symlink"}
_ENTERED = frozenset({Kind.FOLDER, Kind.GONE_FOLDER, Kind.PASS})


@dataclass(frozen=True)
class Entry:
    """One change. `letter`: A added, D deleted, M modified, T of another type now; `what` names
    what differs; `kind` is what it is now, or was. `mode`: the permissions, now or before.
    """

    letter: str
    path: bytes
    kind: str
    mode: int
    what: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True)
class LeftOut:
    """A name that is new or changed, and cannot be carried over; `why` is safe to show."""

    path: bytes
    why: str


def listed(archive: int) -> Iterator[Entry | LeftOut]:
    """The changes in the file behind `archive`, in its order. Raises ProtocolError."""
    window = Window(
        lambda position, size: os.pread(archive, size, position), os.fstat(archive).st_size
    )
    place: list[bytes] = []
    for record in records(window, changes=True):
        kind = record.kind
        if kind == Kind.LEAVE:
            place.pop()
            continue
        if kind in (Kind.DATA, Kind.END):
            continue
        path = b"/".join((*place, record.name)) or b"."
        if kind == Kind.NOTE:
            yield LeftOut(path, _reason(record.number))
        elif kind not in (Kind.PASS, Kind.WAS) and not (kind == Kind.GONE_FOLDER and record.number):
            yield _entry(record, path)
        if kind in _ENTERED:
            place.append(record.name)


def _reason(number: int) -> str:
    known = number in set(Reason)
    return WORDS[Reason(number) if known else Reason.UNKNOWN_KIND]


def _entry(record: Record, path: bytes) -> Entry:
    kind = record.kind
    if kind in (Kind.GONE, Kind.GONE_FOLDER):
        return Entry("D", path, "directory" if kind == Kind.GONE_FOLDER else "", record.mode)
    change = Change(record.change)
    letter = "A" if Change.ADDED in change else "T" if Change.TYPE in change else "M"
    what = () if letter == "A" else tuple(str(each.name).lower() for each in change)
    return Entry(letter, path, KINDS.get(Kind(kind), "file"), record.mode, what, record.size)
