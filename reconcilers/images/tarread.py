"""The entries of a tar file, headers alone, with every number in it taken for a lie until checked.

The standard library reads the formats; this module keeps it from being led astray: no header is
larger than HEADER_MAX, what stands before one entry is not without end, offsets only grow, and an
archive that breaks off is an error, where tarfile takes it for the end.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from reconcilers.images.layers import Entry, Kind, shown
from reconcilers.images.tree import NOTHING, BadImage, Content, Xattrs

# Names and extended attributes of one entry; Linux allows 64 KiB of attributes and 4 KiB of path.
HEADER_MAX = 1 << 20
# All that is read before the bytes of one entry: several headers, and the list of a file's holes.
ENTRY_MAX = 2 * HEADER_MAX
GLOBAL_MAX = 64 << 10
BLOCK = 512
PIECES_MAX = 10_000  # of one sparse file
# The others speak of something that is not the image's: labels of the builder's system, or what an
# overlay file system would take for its own.
_ATTRIBUTES = ("security.capability", "user.")
_PREFIX = "SCHILY.xattr."
_UID_MAX, _TIME_MAX = (1 << 32) - 2, (1 << 32) - 1

_KINDS = {
    tarfile.DIRTYPE: Kind.folder,
    tarfile.SYMTYPE: Kind.symlink,
    tarfile.LNKTYPE: Kind.hardlink,
    tarfile.FIFOTYPE: Kind.fifo,
    tarfile.CHRTYPE: Kind.device,
    tarfile.BLKTYPE: Kind.device,
}


class _Bounded(io.RawIOBase):
    """What tarfile may read at once: it believes the sizes that headers give."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._read = 0

    def begin(self) -> None:
        """The next entry begins."""
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= HEADER_MAX + BLOCK:
            raise BadImage(f"a header is larger than {HEADER_MAX} bytes")
        self._read += size
        if self._read > ENTRY_MAX:
            raise BadImage(f"the headers of one entry are larger than {ENTRY_MAX} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset < 0:
            raise BadImage("a size in it is negative")
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def entries(file: BinaryIO, source: int) -> Iterator[Entry]:
    """Every entry of an uncompressed tar file, in order. Raises BadImage."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if size == 0:
        return  # a layer without content, as some builders write it
    former, bounded = -1, _Bounded(file)
    try:
        with tarfile.open(
            fileobj=bounded, mode="r:", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            # The first member is read by open() already, and next() gives it.
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                _check_global(archive)
                bounded.begin()
                if archive.offset <= former or archive.offset > size + BLOCK:
                    raise BadImage("it does not end where its headers say")
                former = archive.offset
                yield _entry(member, source, size)
            end = archive.offset
    except BadImage:
        raise
    except (tarfile.TarError, ValueError, OverflowError, LookupError, RecursionError) as error:
        raise BadImage(f"it is no tar file that can be read: {error}") from error
    file.seek(end)
    if file.read(BLOCK).strip(b"\0"):
        raise BadImage(f"what stands at byte {end} is no header of a tar file")


def _check_global(archive: tarfile.TarFile) -> None:
    """What holds for all entries from here on: tarfile copies it for each."""
    size = sum(len(key) + len(value) for key, value in archive.pax_headers.items())
    if size > GLOBAL_MAX:
        raise BadImage(f"its global headers are larger than {GLOBAL_MAX} bytes")


def _entry(member: tarfile.TarInfo, source: int, size: int) -> Entry:
    name = _bytes(member.name)
    kind = _KINDS.get(member.type)
    if kind is None:
        if not member.isreg():
            raise BadImage(f'"{shown(name)}" is of an unknown type')
        kind = Kind.file
    if not (0 <= member.uid <= _UID_MAX and 0 <= member.gid <= _UID_MAX):
        raise BadImage(f'"{shown(name)}" has an owner that no system has')
    return Entry(
        name=name,
        kind=kind,
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        mtime=int(member.mtime) if 0 <= member.mtime <= _TIME_MAX else 0,
        link=_bytes(member.linkname),
        xattrs=_attributes(member),
        content=_content(member, source, size) if kind is Kind.file else NOTHING,
    )


def _content(member: tarfile.TarInfo, source: int, size: int) -> Content:
    # typeshed says nothing of `sparse`; None for a file without holes
    sparse: list[tuple[int, int]] | None = getattr(member, "sparse", None)
    stored = member.size if sparse is None else sum(length for _, length in sparse)
    start = member.offset_data
    if member.size < 0 or stored < 0 or start + stored > size:
        raise BadImage(f'"{shown(_bytes(member.name))}" breaks off: {stored} bytes are not there')
    if sparse is None:
        return Content(source, start, member.size)
    last, at, pieces = 0, start, list[tuple[int, int, int]]()
    for offset, length in sparse:
        if not length:
            continue  # GNU pads its lists
        if offset < last or length < 0 or offset + length > member.size:
            raise BadImage(f'"{shown(_bytes(member.name))}" has holes that overlap')
        pieces.append((offset, length, at))
        last, at = offset + length, at + length
    if len(pieces) > PIECES_MAX:
        raise BadImage(f'"{shown(_bytes(member.name))}" has more than {PIECES_MAX} holes')
    return Content(source, start, member.size, tuple(pieces))


def _attributes(member: tarfile.TarInfo) -> Xattrs:
    found = []
    for key, value in member.pax_headers.items():
        name = key.removeprefix(_PREFIX)
        if name != key and name.startswith(_ATTRIBUTES):
            found.append((_bytes(name), _bytes(value)))
    return tuple(sorted(found))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
