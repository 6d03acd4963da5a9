"""The "newc" archive format that Linux unpacks as its initramfs.

Pure and deterministic: the same entries give the same bytes, with no time, owner or inode of the
host in them. It must not read files. The format is in the kernel's
Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"


@dataclass(frozen=True)
class Entry:
    """A folder, file or device node of root's. `mode` includes the type (stat.S_IFREG, ...)."""

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def folder(path: str, mode: int = 0o755) -> Entry:
    """A directory."""
    return Entry(path, stat.S_IFDIR | mode)


def regular(path: str, data: bytes, mode: int = 0o644) -> Entry:
    """A regular file."""
    return Entry(path, stat.S_IFREG | mode, data)


def character(path: str, major: int, minor: int, mode: int = 0o600) -> Entry:
    """A character device node."""
    return Entry(path, stat.S_IFCHR | mode, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of `entries`, in their order, ended by the trailer and padded to 512 bytes."""
    out = bytearray()
    for number, entry in enumerate(entries, 1):
        _append(out, number, entry)
    _append(out, 0, Entry(_TRAILER, 0))
    _pad(out, 512)
    return bytes(out)


def _append(out: bytearray, number: int, entry: Entry) -> None:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    # inode, mode, uid, gid, links, mtime, size, the file's device (2), the node's device (2), name,
    # checksum
    fields = (
        number,
        entry.mode,
        0,
        0,
        links,
        0,
        len(entry.data),
        0,
        0,
        *entry.device,
        len(name),
        0,
    )
    out += _MAGIC + b"".join(b"%08x" % value for value in fields) + name
    _pad(out, 4)
    out += entry.data
    _pad(out, 4)


def _pad(out: bytearray, unit: int) -> None:
    out += bytes(-len(out) % unit)
