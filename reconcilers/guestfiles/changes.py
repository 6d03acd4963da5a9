"""What a guest says that differs between two states of /data: an archive of changes as a listing.

It is taken for hostile, like every archive; nothing of it is written anywhere. Names are byte for
byte the guest's: whoever shows one makes it safe first. It may be as long as a disk is large, so
there is an end to how much of it is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from agent.archive import Change, Kind, Reason, Record, Window, records
from reconcilers.guestfiles.notes import WORDS
from specs.errors import ProtocolError

RECORDS_MAX = 20_000_000
"""Of one list. A fork with a million changed files has two or three million."""
PATHS_MAX = 4 << 30
"""Bytes of all paths: folders may lie so deep in each other that each path has megabytes."""
SECONDS_MAX = 120.0
"""Of the processor, for one list; a million records take a few. Whoever shows it to somebody who
pages through it takes as long as that one likes.
"""
_LOOK_EVERY = 1024  # records
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


class TooMuch(ProtocolError):
    """A list goes on beyond what is read of one."""


class _Bounds:
    def __init__(self) -> None:
        self._records = self._paths = 0
        self._until = time.process_time() + SECONDS_MAX

    def count(self) -> None:
        self._records += 1
        if self._records > RECORDS_MAX:
            self._stop(f"more than {RECORDS_MAX} records")
        if self._records % _LOOK_EVERY == 0 and time.process_time() > self._until:
            self._stop(f"so much that {SECONDS_MAX:g} s do not suffice")

    def hold(self, path: bytes) -> None:
        self._paths += len(path)
        if self._paths > PATHS_MAX:
            self._stop(f"paths of more than {PATHS_MAX >> 20} MiB")

    def _stop(self, what: str) -> NoReturn:
        raise TooMuch(
            f"the list of changes has {what}, and is not read any further",
            fix="look at /data in a VM: box run NAME -- ls -lR /data",
        )


def listed(archive: int) -> Iterator[Entry | LeftOut]:
    """The changes in the file behind `archive`, in its order. Raises ProtocolError; TooMuch when
    there is more than RECORDS_MAX, PATHS_MAX and SECONDS_MAX allow, which is told only then.
    """
    window = Window(
        lambda position, size: os.pread(archive, size, position), os.fstat(archive).st_size
    )
    place: list[bytes] = []
    bounds = _Bounds()
    for record in records(window, changes=True):
        bounds.count()
        kind = record.kind
        if kind == Kind.LEAVE:
            place.pop()
            continue
        if kind in (Kind.DATA, Kind.END):
            continue
        path = b"/".join((*place, record.name)) or b"."
        bounds.hold(path)
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
