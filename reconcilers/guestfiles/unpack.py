"""Writes what an archive from a guest holds into a directory of the host, and nothing beside it.

The archive is taken for hostile. Every name goes through `beneath`; links are written down and
never followed; set-user-ID, set-group-ID and capabilities are dropped, owners are whoever runs
this; what has a name that is taken already is left out and told. It must not print.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial

from agent.archive import LONG, Kind, Record, Window, attributes, records
from reconcilers.guestfiles import beneath
from reconcilers.guestfiles.beneath import CANNOT_BE, shown
from reconcilers.guestfiles.copying import copy
from reconcilers.guestfiles.cursor import Cursor, Place
from reconcilers.guestfiles.folding import Folder
from reconcilers.guestfiles.notes import Notes
from specs.errors import ProtocolError

# Attributes by which other programs give a file what it does not have: an owner, a device, a
# set-user-ID bit (rsync --fake-super, fuse-overlayfs, overlayfs with userxattr, virtiofsd).
MEANT_FOR_PROGRAMS = (
    b"user.rsync.",
    b"user.containers.",
    b"user.fuseoverlayfs.",
    b"user.overlay.",
    b"user.virtiofs.",
)
_NOT_KEPT = frozenset(
    {errno.EOPNOTSUPP, errno.ENOSPC, errno.EDQUOT, errno.ERANGE, errno.EPERM, errno.E2BIG}
)
TAKEN = "its name is taken by another one here, left out"
NOT_HERE = "cannot be made here, left out"
SPECIAL_BITS = "its set-user-ID, set-group-ID or sticky bit is dropped"


def unpack(root: int, archive: int, notes: Notes) -> None:
    """Write the archive in the file behind `archive` into the empty directory behind `root`.

    Raises ProtocolError for an archive that is none, OSError (a full disk); what was written by
    then is the caller's to remove. Modes are final only when this returns.
    """
    work = _Unpacking(root, archive, notes)
    try:
        work.run()
    finally:
        work.close()


class _Unpacking:
    def __init__(self, root: int, archive: int, notes: Notes) -> None:
        self._at = Cursor(root)
        self._archive = archive
        self._notes = notes
        self._window = Window(
            lambda position, size: os.pread(archive, size, position), os.fstat(archive).st_size
        )
        self._folders: list[Record] = []
        self._names = [Folder()]
        self._skipped = 0  # directories that we are in and that are left out
        self._file: tuple[int, Record] | None = None
        self._written = 0  # where the data of that file ends so far
        self._numbered: dict[int, tuple[Place, bytes]] = {}
        # Directories that an ordinary user could not enter with their final mode, each after all
        # that is in it.
        self._late: list[tuple[Place, int]] = []

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file[0])
            self._file = None
        self._at.close()

    def run(self) -> None:
        for record in records(self._window):
            if record.kind == Kind.DATA:
                if self._file is not None:
                    self._data(self._file[0], record)
                continue
            self._finish_file()
            if self._skipped:
                self._skip(record)
            else:
                self._make(record)
        for place, mode in self._late:
            with self._at.at(place) as descriptor:
                os.fchmod(descriptor, mode)

    def _skip(self, record: Record) -> None:
        if record.kind == Kind.FOLDER:
            self._skipped += 1
        elif record.kind == Kind.LEAVE:
            self._skipped -= 1

    def _make(self, record: Record) -> None:
        kind, name = record.kind, record.name
        if kind == Kind.LEAVE:
            self._leave()
            return
        if kind == Kind.NOTE:
            self._notes.reason(self._where(name), record.number)
            return
        if kind == Kind.END:
            return
        try:
            if kind == Kind.FOLDER:
                self._enter(record)
            elif kind == Kind.FILE:
                self._begin_file(record)
            elif kind == Kind.SYMLINK:
                beneath.make_symlink(self._at.here, name, record.body, record.mtime_ns)
                self._notes.links += 1
            elif kind == Kind.HARD:
                self._hard(record)
        except OSError as error:
            if error.errno != errno.EEXIST and error.errno not in CANNOT_BE:
                raise
            taken = error.errno == errno.EEXIST
            self._tell(name, TAKEN if taken else f"{NOT_HERE}: {os.strerror(error.errno or 0)}")
            self._skipped = int(kind == Kind.FOLDER)
            return
        inside = kind == Kind.FOLDER
        if twin := self._names[-2 if inside else -1].twin(name):
            place = self._at.place.parent if inside else self._at.place
            assert place is not None
            told = f"is the same name as {shown(twin)} on systems that ignore case"
            self._notes.add(partial(place.path, name), told)

    def _tell(self, name: bytes, what: str) -> None:
        self._notes.add(self._where(name), what)

    def _where(self, name: bytes = b"") -> Callable[[], bytes]:
        """The path of where we are now, or of `name` in it, for when it is needed."""
        return partial(self._at.place.path, name)

    # -- directories

    def _enter(self, record: Record) -> None:
        descriptor = beneath.make_folder(self._at.here, record.name)
        self._at.enter(record.name, descriptor)
        self._folders.append(record)
        self._names.append(Folder())
        self._notes.folders += 1

    def _leave(self) -> None:
        record = self._folders.pop()
        self._names.pop()
        here = self._at.here
        self._keep_attributes(here, record, self._where())
        # Later hard links lead through it, and an ordinary user needs the right to.
        late = record.mode & 0o500 != 0o500
        if record.mode & 0o6000:
            self._notes.add(self._where(), SPECIAL_BITS)
        beneath.settle_folder(here, 0o700 if late else record.mode, record.mtime_ns)
        if late:
            self._late.append((self._at.place, record.mode & 0o1777))
        self._at.leave()

    # -- files

    def _begin_file(self, record: Record) -> None:
        descriptor = beneath.make_file(self._at.here, record.name)
        try:
            if record.size >= LONG:
                os.ftruncate(descriptor, record.size)
        except OSError:  # EFBIG: no file may be as long here
            os.close(descriptor)
            beneath.remove_file(self._at.here, record.name)
            raise
        self._file, self._written = (descriptor, record), 0
        if record.number:
            self._numbered[record.number] = (self._at.place, record.name)
        self._notes.files += 1

    def _data(self, descriptor: int, record: Record) -> None:
        self._written = record.size + record.length
        self._notes.data += record.length
        if record.length <= 1 << 16:
            data = self._window.bytes(record.position, record.length)
            if os.pwrite(descriptor, data, record.size) == record.length:
                return
        have = copy(self._archive, record.position, descriptor, record.size, record.length)
        if have < record.length:
            raise ProtocolError("the archive ends in the middle of a file")

    def _finish_file(self) -> None:
        if self._file is None:
            return
        descriptor, record = self._file
        self._file = None
        try:
            if self._written < record.size:
                os.ftruncate(descriptor, record.size)
            path = self._where(record.name)
            self._keep_attributes(descriptor, record, path)
            if record.mode & 0o7000:
                self._notes.add(path, SPECIAL_BITS)
            beneath.settle_file(descriptor, record.mode, record.mtime_ns)
        finally:
            os.close(descriptor)

    def _hard(self, record: Record) -> None:
        known = self._numbered.get(record.number)
        if known is None:
            self._tell(record.name, "the file it is another name of was left out, and so is it")
            return
        place, name = known
        with self._at.at(place) as source:
            beneath.make_hard_link(source, name, self._at.here, record.name)
        self._notes.files += 1

    def _keep_attributes(self, descriptor: int, record: Record, path: Callable[[], bytes]) -> None:
        if not record.body:
            return
        for name, value in attributes(record.body):
            if name.startswith(MEANT_FOR_PROGRAMS):
                self._notes.add(path, f"its attribute {shown(name)} is dropped")
                continue
            try:
                os.setxattr(descriptor, name, value)
            except OSError as error:
                if error.errno not in _NOT_KEPT:
                    raise
                what = f"its attribute {shown(name)} is lost: {os.strerror(error.errno or 0)}"
                self._notes.add(path, what)
