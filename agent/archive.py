"""The archive in which files move between /data and the host: pure encoding and decoding.

`PROTOCOL.md` describes it byte by byte; `src/archive.h` holds the same numbers. What is decoded
here comes from a guest, so every length, number and name is checked before anybody sees it, and so
is the order of the records: whoever unpacks them may rely on it. It must not do I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple

from specs.errors import ProtocolError

MAGIC = b"BOXDATA\1"
HEADER = MAGIC + bytes(8)
CHANGES_HEADER = b"BOXDIFF\1" + bytes(8)  # of an archive of changes
RECORD = struct.Struct("<BBHHHQqIIIIQ")
UNIT = 8  # every record begins at a multiple of it
BLOCK = 4096  # and so does each long run of data, so that it can be shared instead of copied
LONG = 64 << 10  # bytes from which a run of data is a long one
NAME_MAX = 255
DIGEST = 16  # bytes, of what a WAS tells
TARGET_MAX = 4095
BODY_MAX = 0xFFFF
SIZE_MAX = 1 << 44  # 16 TiB, the largest file of ext4 with blocks of 4 KiB
DEPTH_MAX = 16384
NUMBERS_MAX = 1 << 20  # files with several names: each is remembered until the end
# What ext4 can say: 34 bits of seconds from 1901 on (Documentation/filesystems/ext4/inodes.rst).
SECONDS_MIN, SECONDS_MAX = -(1 << 31), (1 << 34) - (1 << 31) - 1
NANO = 1_000_000_000
USER = b"user."
WINDOW = 1 << 20
_ZEROS = bytes(BLOCK)


class Kind(IntEnum):
    """Kinds of record."""

    FOLDER = 1  # what follows is in it, until its LEAVE
    LEAVE = 2
    FILE = 3  # followed by its DATA
    SYMLINK = 4  # the body is where it leads
    HARD = 5  # another name of the FILE with this number
    DATA = 6  # of the FILE before it; the rest of a file is holes
    NOTE = 7  # something the archive lacks, or that is not as it was
    END = 8
    # Only in an archive of changes.
    GONE = 9
    GONE_FOLDER = 10  # what follows was in it, until its LEAVE
    PASS = 11  # a directory that is as it was; what follows is in it, until its LEAVE
    TOP = 12  # /data itself
    WAS = 13  # what the entry that follows was


class Change(IntFlag):
    """What of an entry is another than it was. A plain archive has none."""

    ADDED = 1
    CONTENT = 2
    MODE = 4
    OWNER = 8
    ATTRIBUTES = 16
    TYPE = 32
    LINKS = 64


class Reason(IntEnum):
    """What a NOTE says of a name."""

    FIFO = 1
    SOCKET = 2
    CHARACTER_DEVICE = 3
    BLOCK_DEVICE = 4
    UNREADABLE = 5
    TOO_DEEP = 6
    CHANGED = 7
    ATTRIBUTES = 8
    UNKNOWN_KIND = 9


class Record(NamedTuple):
    """One record. Which fields count depends on its kind.

    `size`: bytes of a FILE, where in the file DATA belongs, entries before END. `length`: bytes of
    DATA, or of all data before END. `number`: of a FILE with several names (else 0) or of the one a
    HARD names, from 1 on; the Reason of a NOTE; how many NOTEs were before END. `body`: extended
    attributes, or where a SYMLINK leads. `position`: where in the archive the bytes of DATA are.
    `change`: see Change.
    """

    kind: int
    name: bytes = b""
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    uid: int = 0
    gid: int = 0
    number: int = 0
    length: int = 0
    body: bytes = b""
    position: int = 0
    change: int = 0


def encode(record: Record, position: int) -> bytes:
    """The bytes of `record` at `position` of the archive, up to where its data begins. `position`
    is a multiple of UNIT. Raises struct.error for numbers that do not fit.
    """
    kind, name, mode, size, mtime_ns, uid, gid, number, length, body, _, change = record
    seconds, nanoseconds = divmod(mtime_ns, NANO)
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        seconds = min(max(seconds, SECONDS_MIN), SECONDS_MAX)
    data = RECORD.pack(
        kind,
        change,
        mode,
        len(name),
        len(body),
        size,
        seconds,
        nanoseconds,
        uid,
        gid,
        number,
        length,
    )
    data += name + body
    unit = BLOCK if length >= LONG and kind == _DATA else UNIT
    return data + _ZEROS[: -(position + len(data)) % unit]


def encode_attributes(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Extended attributes as a record's body. Raises ValueError when they are too many or long."""
    body = b"".join(
        struct.pack("<HH", len(name), len(value)) + name + value for name, value in pairs
    )
    if len(body) > BODY_MAX:
        raise ValueError("the extended attributes are too long")
    return body


def attributes(body: bytes, *, of_all: bool = False) -> list[tuple[bytes, bytes]]:
    """What `encode_attributes` wrote; only those of users may be there unless they are `of_all`
    kinds. Raises ProtocolError.
    """
    found, at = [], 0
    while at < len(body):
        if len(body) - at < 4:
            raise ProtocolError("an extended attribute is cut short")
        name_size, value_size = struct.unpack_from("<HH", body, at)
        name = body[at + 4 : at + 4 + name_size]
        at += 4 + name_size
        value = body[at : at + value_size]
        at += value_size
        if at > len(body):
            raise ProtocolError("an extended attribute is cut short")
        of_user = name.startswith(USER) and len(USER) < len(name)
        if not (of_all or of_user) or not 1 <= len(name) <= NAME_MAX or b"\0" in name:
            raise ProtocolError("an extended attribute has a name that none may have")
        found.append((name, value))
    return found


# -- decoding -------------------------------------------------------------------------------------


class Window:
    """Bytes of an archive at any position, read a piece at a time. `read(position, size)` gives at
    most `size` bytes; `end` is where the archive's file ends.
    """

    def __init__(self, read: Callable[[int, int], bytes], end: int) -> None:
        self._read = read
        self._base = 0
        self.held = b""
        self.end = end

    def place(self, position: int, size: int) -> int:
        """Where in `held` the `size` bytes (at most WINDOW) from `position` begin. Raises
        ProtocolError at the end.
        """
        at = position - self._base
        if at < 0 or at + size > len(self.held):
            self._base, at = position, 0
            self.held = self._read(position, min(WINDOW, max(0, self.end - position)))
            if len(self.held) < size:
                raise ProtocolError("the archive ends in the middle of a record")
        return at

    def bytes(self, position: int, size: int) -> bytes:
        """`size` bytes (at most WINDOW) from `position`. Raises ProtocolError at the end."""
        at = self.place(position, size)
        return self.held[at : at + size]


class _Order:
    """Whether a record may follow those before it."""

    def __init__(self, changes: bool) -> None:
        self._changes = changes
        self._gone = 0  # directories that are gone and that we are in
        self.depth = self.entries = self.notes = self.data = 0
        self.numbers = 0
        self._size = -1  # of the file whose data may come
        self._until = 0

    def check(self, record: Record) -> str:
        """Empty, or what is wrong."""
        kind = record.kind
        if kind == _DATA:
            return self._data(record)
        if self._changes:
            if wrong := self._fits(record):
                return wrong
        elif kind > _END or record.change:
            return "a change where none belongs"
        if kind == _FILE:
            self.entries += 1
            return self._file(record)
        self._size = -1
        if kind == _END:
            return self._end(record)
        if kind == _LEAVE:
            self.depth -= 1
            self._gone -= self._gone > 0
            return "it leaves more directories than it entered" if self.depth < 0 else ""
        if kind == _NOTE:
            self.notes += 1
            return ""
        self.entries += kind not in _NO_ENTRIES
        if kind in _FOLDERS:
            self.depth += 1
            self._gone += kind == Kind.GONE_FOLDER
            return "its directories are too deep" if self.depth > DEPTH_MAX else ""
        if kind == _HARD:
            known = 1 <= record.number <= self.numbers
            return "" if known else "it links to a file that was not before it"
        return ""

    def _fits(self, record: Record) -> str:
        """What stands against a record of its kind in an archive of changes."""
        kind = record.kind
        if (record.change != 0) != (kind in _CHANGED):
            return "a change where none belongs, or none where one does"
        if self._gone and kind not in _INSIDE_GONE:
            return "something in a directory that is gone"
        if kind == Kind.TOP and (self.depth or self.entries):
            return "its top comes late"
        return ""

    def _file(self, record: Record) -> str:
        self._size, self._until = record.size, 0
        if record.number == 0:
            return ""
        self.numbers += 1
        if self.numbers > NUMBERS_MAX:
            return f"it has more than {NUMBERS_MAX} files with several names"
        return "" if record.number == self.numbers else "its files are numbered out of order"

    def _data(self, record: Record) -> str:
        if self._size < 0:
            return "it has data that belongs to no file"
        if record.size < self._until or record.length == 0 or record.change:
            return "the data of a file is out of order"
        self._until = record.size + record.length
        self.data += record.length
        return "" if self._until <= self._size else "it has data beyond the end of a file"

    def _end(self, record: Record) -> str:
        if self.depth:
            return "it ends inside a directory"
        counted = (self.entries, self.notes, self.data)
        told = (record.size, record.number, record.length)
        return "" if counted == told else "its counts do not agree with what it holds"


def records(window: Window, *, changes: bool = False) -> Iterator[Record]:
    """Every record in order, the last one END. Raises ProtocolError for what no archive, or no
    archive of changes, may be.
    """
    if window.bytes(0, len(HEADER)) != (CHANGES_HEADER if changes else HEADER):
        raise ProtocolError("what the guest wrote is no archive")
    at, order = len(HEADER), _Order(changes)
    while True:
        record, following = _decode(window, at)
        if wrong := order.check(record):
            raise ProtocolError(f"the archive is wrong at byte {at}: {wrong}")
        yield record
        if record.kind == _END:
            return
        at = following


def _decode(window: Window, at: int) -> tuple[Record, int]:
    """The record at `at`, and where the next one begins."""
    head = window.place(at, RECORD.size)  # first: it may replace what is held
    (
        kind,
        change,
        mode,
        name_size,
        body_size,
        size,
        seconds,
        nanoseconds,
        uid,
        gid,
        number,
        length,
    ) = RECORD.unpack_from(window.held, head)
    least, most, body_least, body_most = _LIMITS.get(kind, _NONE)
    if (
        change > _CHANGE_MAX or mode > 0o7777 or nanoseconds >= NANO
        or size > SIZE_MAX or length > SIZE_MAX
        or not least <= name_size <= most or not body_least <= body_size <= body_most
        or not SECONDS_MIN <= seconds <= SECONDS_MAX
    ):  # fmt: skip
        wrong = _wrong(kind, name_size, body_size, seconds)
        raise ProtocolError(f"the archive is wrong at byte {at}: {wrong}")
    after = at + RECORD.size + name_size + body_size
    name = body = b""
    if most or body_size:
        text = window.place(at + RECORD.size, name_size + body_size)
        name = window.held[text : text + name_size]
        body = window.held[text + name_size : text + name_size + body_size]
        if b"/" in name or b"\0" in name or name in _NO_NAMES:
            raise ProtocolError(f"the archive is wrong at byte {at}: a name is none")
        if kind == _SYMLINK and b"\0" in body:
            raise ProtocolError(f"the archive is wrong at byte {at}: a link leads nowhere")
    start = following = after
    if kind == _DATA:
        start += -after % (BLOCK if length >= LONG else UNIT)
        following = start + length
        if following > window.end:
            raise ProtocolError("the archive ends in the middle of a file")
    when = seconds * NANO + nanoseconds
    made = Record(kind, name, mode, size, when, uid, gid, number, length, body, start, change)
    return made, following + -following % UNIT


# As plain numbers: a transfer compares them some ten times for each file.
_FOLDER, _LEAVE, _FILE, _SYMLINK = map(int, (Kind.FOLDER, Kind.LEAVE, Kind.FILE, Kind.SYMLINK))
_HARD, _DATA, _NOTE, _END = map(int, (Kind.HARD, Kind.DATA, Kind.NOTE, Kind.END))
_NO_NAMES = (b".", b"..")
_FOLDERS = frozenset({Kind.FOLDER, Kind.GONE_FOLDER, Kind.PASS})
_CHANGED = frozenset({Kind.FOLDER, Kind.FILE, Kind.SYMLINK, Kind.HARD, Kind.TOP})
_INSIDE_GONE = frozenset({Kind.GONE, Kind.GONE_FOLDER, Kind.LEAVE, Kind.NOTE, Kind.WAS})
_NO_ENTRIES = frozenset({Kind.PASS, Kind.WAS})
_CHANGE_MAX = sum(Change)
# Least and most bytes of the name, and of the body; _NONE holds of no record.
_LIMITS = {
    _FOLDER: (1, NAME_MAX, 0, BODY_MAX),
    _FILE: (1, NAME_MAX, 0, BODY_MAX),
    _SYMLINK: (1, NAME_MAX, 1, TARGET_MAX),
    _HARD: (1, NAME_MAX, 0, 0),
    _NOTE: (1, NAME_MAX, 0, 0),
    int(Kind.GONE): (1, NAME_MAX, 0, 0),
    int(Kind.GONE_FOLDER): (1, NAME_MAX, 0, 0),
    int(Kind.PASS): (1, NAME_MAX, 0, BODY_MAX),
    int(Kind.TOP): (0, 0, 0, BODY_MAX),
    int(Kind.WAS): (0, NAME_MAX, DIGEST, DIGEST),
} | dict.fromkeys((_LEAVE, _DATA, _END), (0, 0, 0, 0))
_NONE = (1, 0, 1, 0)


def _wrong(kind: int, name_size: int, body_size: int, seconds: int) -> str:
    """What is wrong with a record whose numbers cannot be."""
    least, most, body_least, body_most = _LIMITS.get(kind, _NONE)
    if (least, most) == _NONE[:2]:
        return "a record of an unknown kind"
    if not least <= name_size <= most:
        return "a name is empty or too long" if most else "a name where none belongs"
    if body_size > body_most:
        return "the body of a record is too long"
    if body_size < body_least:
        return "a link leads nowhere"
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        return "a time is out of range"
    return "a number is out of range"
