"""Reads a small file of ours without trusting what stands in its place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from specs.errors import HostError

LIMIT = 64 << 10  # bytes


def read_small(path: Path, limit: int = LIMIT) -> bytes:
    """All bytes of the regular file `path`; follows no link under that name and never blocks.

    Raises OSError, or HostError for what is no regular file or larger than `limit` bytes.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise HostError(f"{path} is not a regular file", fix=f"mv {path} {path}.old")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise HostError(f"{path} is larger than {limit} bytes", fix=f"mv {path} {path}.old")
    return data


def stat_signature(path: Path) -> tuple[int, ...]:
    """Equal ones mean unchanged bytes; empty when there is nothing that can be looked at."""
    try:
        facts = path.stat()
    except OSError:
        return ()
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
