"""Writes a directory of the host as an archive, for a guest to unpack.

No link in it is followed and nothing but regular files and directories is opened; what cannot go
along is left out and told. A file that changes meanwhile makes no archive wrong: what was promised
is filled up with zeros, and the file is told. It must not print.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import partial

from agent.archive import (
    BLOCK,
    DEPTH_MAX,
    HEADER,
    LONG,
    NUMBERS_MAX,
    RECORD,
    SIZE_MAX,
    UNIT,
    USER,
    Kind,
    Reason,
    Record,
    encode,
    encode_attributes,
)
from reconcilers.guestfiles import beneath
from reconcilers.guestfiles.copying import copy
from reconcilers.guestfiles.cursor import Cursor
from reconcilers.guestfiles.notes import Notes

# Where the guest puts what is on its way: see staged.c of the agent.
RESERVED = frozenset({b".box-import-new", b".box-import-ready"})
GONE = "vanished while it was read, left out"
_KINDS = {
    stat.S_IFIFO: Reason.FIFO,
    stat.S_IFSOCK: Reason.SOCKET,
    stat.S_IFCHR: Reason.CHARACTER_DEVICE,
    stat.S_IFBLK: Reason.BLOCK_DEVICE,
}
_FLUSH = 1 << 20


def pack(root: int, archive: int, notes: Notes) -> None:
    """Write what the directory behind `root` holds to the empty file behind `archive`, whose size
    is a multiple of BLOCK afterwards. Raises OSError.
    """
    work = _Packing(root, archive, notes)
    try:
        work.run()
    finally:
        work.close()


class _Writer:
    """The archive's file, written in large pieces."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = bytearray(HEADER)
        self._start = 0  # where in the file that belongs

    def record(self, record: Record, data: bytes = b"") -> None:
        """With its data, where that is short."""
        held = self._held
        held += encode(record, self._start + len(held))
        if data:
            held += data
            held += bytes(-len(held) % UNIT)
        if len(held) >= _FLUSH:
            self._flush()

    def small(self, record: Record, data: bytes) -> None:
        """A FILE and all of its data, fewer than LONG bytes: most files are, so it costs little."""
        held = self._held
        held += encode(record, self._start + len(held))
        if data:
            held += RECORD.pack(Kind.DATA, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, len(data))
            held += data
            held += bytes(-len(held) % UNIT)
        if len(held) >= _FLUSH:
            self._flush()

    def run(self, record: Record, source: int) -> bool:
        """A DATA record, with its bytes of the file `source`. False when they were fewer."""
        self.record(record)
        self._flush()
        have = copy(source, record.size, self._descriptor, self._start, record.length)
        self._start += record.length + -record.length % UNIT
        return have == record.length

    def finish(self) -> None:
        self._flush()
        os.ftruncate(self._descriptor, self._start + -self._start % BLOCK)

    def _flush(self) -> None:
        view = memoryview(self._held)
        done = 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], self._start + done)
        view.release()
        self._start += done
        self._held.clear()


class _Packing:
    def __init__(self, root: int, archive: int, notes: Notes) -> None:
        self._at = Cursor(root)
        self._writer = _Writer(archive)
        self._notes = notes
        self._entries = 0
        self._numbers: dict[tuple[int, int], int] = {}

    def close(self) -> None:
        self._at.close()

    def run(self) -> None:
        waiting: list[Iterator[bytes]] = [iter(self._top())]
        while waiting:
            name = next(waiting[-1], None)
            if name is None:
                waiting.pop()
                if waiting:
                    self._at.leave()
                    self._writer.record(Record(Kind.LEAVE))
                continue
            held = -1
            try:
                held, facts = beneath.look(self._at.here, name)
                inside = self._add(name, held, facts)
            except FileNotFoundError:
                self._tell(name, GONE)
            except PermissionError:
                self._leave_out(name, Reason.UNREADABLE)
            else:
                if inside is not None:
                    waiting.append(iter(inside))
            finally:
                if held >= 0:
                    os.close(held)
        told = (self._entries, self._notes.data)
        self._writer.record(Record(Kind.END, size=told[0], length=told[1]))
        self._writer.finish()

    def _top(self) -> list[bytes]:
        found = beneath.names_in(self._at.here)
        for name in RESERVED.intersection(found):
            self._tell(name, "its name is needed for the import itself, left out")
        return [name for name in found if name not in RESERVED]

    def _add(self, name: bytes, held: int, facts: os.stat_result) -> list[bytes] | None:
        """Write one entry; for a directory, which is entered, what it holds."""
        kind = stat.S_IFMT(facts.st_mode)
        if kind == stat.S_IFREG:
            self._file(name, held, facts)
        elif kind == stat.S_IFDIR:
            return self._enter(name, held, facts)
        elif kind == stat.S_IFLNK:
            record = Record(
                Kind.SYMLINK, name, 0o777, mtime_ns=facts.st_mtime_ns, body=beneath.target_of(held)
            )
            self._write(record)
            self._notes.links += 1
        else:
            self._leave_out(name, _KINDS.get(kind, Reason.UNKNOWN_KIND))
        return None

    def _write(self, record: Record, data: bytes = b"") -> None:
        self._entries += 1
        self._writer.record(record, data)

    def _tell(self, name: bytes, what: str) -> None:
        self._notes.add(partial(self._at.place.path, name), what)

    def _leave_out(self, name: bytes, reason: Reason) -> None:
        self._notes.reason(partial(self._at.place.path, name), reason)

    def _enter(self, name: bytes, held: int, facts: os.stat_result) -> list[bytes] | None:
        if self._at.place.depth == DEPTH_MAX:
            self._leave_out(name, Reason.TOO_DEEP)
            return None
        descriptor = beneath.open_held_folder(held)
        try:
            found = beneath.names_in(descriptor)
            body = self._attributes(name, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._write(
            Record(
                Kind.FOLDER, name, self._mode(name, facts), mtime_ns=facts.st_mtime_ns, body=body
            )
        )
        self._notes.folders += 1
        self._at.enter(name, descriptor)
        return found

    def _mode(self, name: bytes, facts: os.stat_result) -> int:
        allowed = 0o1777 if stat.S_ISDIR(facts.st_mode) else 0o777
        mode = stat.S_IMODE(facts.st_mode)
        if mode & ~allowed:
            self._tell(name, "its set-user-ID, set-group-ID or sticky bit is dropped")
        return mode & allowed

    def _file(self, name: bytes, held: int, facts: os.stat_result) -> None:
        number = 0
        if facts.st_size > SIZE_MAX:
            self._tell(name, f"longer than {SIZE_MAX >> 40} TiB, left out")
            return
        if facts.st_nlink > 1:
            key = (facts.st_dev, facts.st_ino)
            if key in self._numbers:
                self._write(Record(Kind.HARD, name, number=self._numbers[key]))
                self._notes.files += 1
                return
            if len(self._numbers) < NUMBERS_MAX:
                number = len(self._numbers) + 1
        descriptor = beneath.open_held(held)
        try:
            record = Record(
                Kind.FILE,
                name,
                self._mode(name, facts),
                facts.st_size,
                facts.st_mtime_ns,
                number=number,
                body=self._attributes(name, descriptor),
            )
            if number:
                self._numbers[facts.st_dev, facts.st_ino] = number
            whole = self._content(record, descriptor, facts)
            now = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        self._notes.files += 1
        before, after = (facts.st_size, facts.st_mtime_ns), (now.st_size, now.st_mtime_ns)
        if not whole or before != after:
            self._leave_out(name, Reason.CHANGED)

    def _content(self, record: Record, descriptor: int, facts: os.stat_result) -> bool:
        """The file and its data; False when there was less of that than its size promised."""
        size = facts.st_size
        dense = facts.st_blocks * 512 >= size
        if dense and size < LONG:
            data = os.pread(descriptor, size, 0) if size else b""
            self._entries += 1
            self._writer.small(record, data)
            self._notes.data += len(data)
            return len(data) == size
        self._write(record)
        whole = True
        for start, length in [(0, size)] if dense else list(_runs(descriptor, size)):
            part = Record(Kind.DATA, size=start, length=length)
            self._notes.data += length
            if length < LONG:
                data = os.pread(descriptor, length, start)
                whole = whole and len(data) == length
                self._writer.record(part, data + bytes(length - len(data)))
            else:
                whole = self._writer.run(part, descriptor) and whole
        return whole

    def _attributes(self, name: bytes, descriptor: int) -> bytes:
        try:
            names = os.listxattr(descriptor)
        except OSError:  # a file system without any
            return b""
        if not names:
            return b""
        wanted = [os.fsencode(each) for each in names if each.startswith("user.")]
        pairs = [(each, os.getxattr(descriptor, each)) for each in wanted if len(each) > len(USER)]
        try:
            return encode_attributes(pairs)
        except ValueError:
            self._leave_out(name, Reason.ATTRIBUTES)
            return b""


def _runs(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of what is not a hole in the first `size` bytes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        if start >= size:
            return
        yield start, min(end, size) - start
