"""Small readers for /proc and its siblings: bytes in, plain values out.

Nothing here knows what a value should be.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable


def read(path: str) -> bytes:
    """A whole /proc file; one open, as few reads as the kernel allows."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def fields(path: str) -> dict[str, str]:
    """`Name:\\tvalue` lines, as in /proc/PID/status (proc(5))."""
    return parse_fields(read(path).decode("ascii", "replace"))


def parse_fields(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in lines}


def stat_fields(path: str) -> list[str]:
    """Fields of /proc/PID/stat from number 3 on; the name before them may hold anything."""
    return read(path).decode("ascii", "replace").rpartition(") ")[2].split()


def start_time(pid: int) -> int:
    """Clock ticks since boot at which the process started: field 22 of /proc/PID/stat."""
    return int(stat_fields(f"/proc/{pid}/stat")[22 - 3])


def identity_of(path: str) -> tuple[int, int]:
    """Device and inode of the file a path, or a /proc link, leads to."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def kind_of(descriptor_path: str) -> tuple[str, str]:
    """What an entry of /proc/PID/fd is: (kind, detail).

    Kinds: file, directory, device, socket, pipe, memfd, anonymous. The detail of a file or device
    is "dev:inode" or "major:minor"; of the others the link's own text.
    """
    return kind_by_link(os.readlink(descriptor_path), lambda: os.stat(descriptor_path))


def kind_by_link(link: str, found: Callable[[], os.stat_result]) -> tuple[str, str]:
    """The same from what the entry links to; `found` is asked where a path alone tells nothing."""
    if link.startswith("/memfd:"):
        return "memfd", link
    if not link.startswith("/"):
        name, _, rest = link.partition(":")
        if name in ("socket", "pipe"):
            return name, link
        return "anonymous", rest.strip("[]")
    return file_kind(found())


def file_kind(found: os.stat_result) -> tuple[str, str]:
    """(kind, detail) of an inode, as in `kind_of`."""
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return "file", f"{found.st_dev}:{found.st_ino}"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device", f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    if stat.S_ISSOCK(mode):
        return "socket", ""
    if stat.S_ISFIFO(mode):
        return "pipe", ""
    return ("directory" if stat.S_ISDIR(mode) else "other"), f"{found.st_dev}:{found.st_ino}"
