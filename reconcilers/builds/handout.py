"""The root that a build's guest handed out, as the entries of one layer.

The archive is taken for hostile: whoever controls the guest's kernel may have written it. Its
records are checked by `agent.archive`; what they describe becomes a tree in memory, by the same
rules as the tar file of any image, and meets no file system of the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from agent.archive import NANO, USER, Kind, Reason, Record, Window, attributes, records
from reconcilers.images import layers
from reconcilers.images.layers import ENTRIES_MAX, Entry, Merge, shown
from reconcilers.images.manifest import Settings
from reconcilers.images.sources import Loaded
from reconcilers.images.tarread import PIECES_MAX
from reconcilers.images.tree import NOTHING, BadImage, Content, Xattrs
from specs.errors import ProtocolError

KEPT = (b"security.capability", USER)  # as of any tar file
TIME_MAX = (1 << 32) - 1
UID_MAX = (1 << 32) - 2


NAMED_MAX = 20
"""How many of the entries that are left out are told by name."""
_LEFT_OUT: Mapping[int, str] = {
    Reason.FIFO: "FIFO",
    Reason.SOCKET: "socket",
    Reason.CHARACTER_DEVICE: "device",
    Reason.BLOCK_DEVICE: "device",
}
_LOST: Mapping[int, str] = {
    Reason.UNREADABLE: "cannot be read",
    Reason.TOO_DEEP: "lies too deep",
    Reason.CHANGED: "changed while it was read",
    Reason.ATTRIBUTES: "has extended attributes that are too long",
}


def loaded(archive: int, tell: Callable[[str], None] = lambda line: None) -> Loaded:
    """The tree in the archive behind `archive`, which must stay open. `tell` is called with a line
    for what is left out, the names as the guest wrote them. Raises BadImage, also where a file
    would be missing that an image can have.
    """
    merge, reading = Merge(), _Reading(archive, tell)
    try:
        merge.apply(reading.entries(), whiteouts=False)
    except (ProtocolError, BadImage) as error:
        raise BadImage(
            f"the root that the steps left: {error.message}",
            fix=error.fix or "change the steps, so that they leave a root without that",
        ) from error
    if reading.left_out > NAMED_MAX:
        tell(f"left out of the image: {reading.left_out - NAMED_MAX} more")
    return Loaded(merge.tree, lambda number: archive, Settings(), 1, reading.left_out)


class _Reading:
    def __init__(self, archive: int, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._window = Window(
            lambda position, size: os.pread(archive, size, position), os.fstat(archive).st_size
        )
        self._folders: list[bytes] = []
        self._numbered: dict[int, bytes] = {}
        self.left_out = 0

    def entries(self) -> Iterator[Entry]:
        """Every entry; a file comes when all of its data is known."""
        file: Record | None = None
        pieces: list[tuple[int, int, int]] = []
        for record in records(self._window):
            if record.kind == Kind.DATA:
                pieces.append((record.size, record.length, record.position))
                if len(pieces) > PIECES_MAX:
                    raise BadImage("one of its files has too many holes")
                continue
            if file is not None:
                yield self._file(file, tuple(pieces))
                file, pieces = None, []
            if record.kind == Kind.FILE:
                file = record
            elif record.kind == Kind.LEAVE:
                self._folders.pop()
            elif record.kind == Kind.NOTE:
                self._note(record)
            elif record.kind != Kind.END:
                yield self._other(record)

    def _note(self, record: Record) -> None:
        name = shown(self._path(record.name))
        if why := _LOST.get(record.number):
            raise BadImage(f'"{name}" {why}')
        self.left_out += 1
        if self.left_out > ENTRIES_MAX:
            raise BadImage("it leaves out too much")
        if self.left_out <= NAMED_MAX:
            kind = _LEFT_OUT.get(record.number, "no file or folder")
            self._tell(f"left out of the image: {name} ({kind})")

    def _file(self, record: Record, pieces: tuple[tuple[int, int, int], ...]) -> Entry:
        if record.number:
            self._numbered[record.number] = self._path(record.name)
        content = Content(0, 0, record.size, pieces)
        return self._entry(record, layers.Kind.file, content=content)

    def _other(self, record: Record) -> Entry:
        if record.kind == Kind.FOLDER:
            entry = self._entry(record, layers.Kind.folder)
            self._folders.append(record.name)
            return entry
        if record.kind == Kind.SYMLINK:
            return self._entry(record, layers.Kind.symlink, link=record.body)
        return self._entry(record, layers.Kind.hardlink, link=self._numbered[record.number])

    def _entry(
        self,
        record: Record,
        kind: layers.Kind,
        *,
        link: bytes = b"",
        content: Content = NOTHING,
    ) -> Entry:
        if record.uid > UID_MAX or record.gid > UID_MAX:
            raise BadImage("it has an owner that no system has")
        has_attributes = record.kind in (Kind.FILE, Kind.FOLDER) and record.body
        return Entry(
            name=self._path(record.name),
            kind=kind,
            mode=record.mode,
            uid=record.uid,
            gid=record.gid,
            mtime=min(max(record.mtime_ns // NANO, 0), TIME_MAX),
            link=link,
            xattrs=_kept(record.body) if has_attributes else (),
            content=content,
        )

    def _path(self, name: bytes) -> bytes:
        return b"/".join((*self._folders, name))


def _kept(body: bytes) -> Xattrs:
    found = attributes(body, of_all=True)
    return tuple(sorted(pair for pair in found if pair[0].startswith(KEPT)))
