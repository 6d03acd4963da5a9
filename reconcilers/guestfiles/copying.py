"""Copies a run of bytes from one file into another, sharing blocks where the file system can."""

from __future__ import annotations

import errno
import os

_AT_ONCE = 1 << 30  # copy_file_range(2) takes at most 2 GiB
_PIECE = 1 << 20
_NO_SHARING = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def copy(source: int, start: int, target: int, offset: int, length: int) -> int:
    """Copy `length` bytes at `start` to `offset`; returns how many there were. Raises OSError."""
    done = 0
    shared = True
    while done < length:
        if shared:
            size = min(length - done, _AT_ONCE)
            try:
                moved = os.copy_file_range(source, target, size, start + done, offset + done)
            except OSError as error:
                if error.errno not in _NO_SHARING:
                    raise
                shared = False
                continue
        else:
            data = os.pread(source, min(length - done, _PIECE), start + done)
            moved = os.pwrite(target, data, offset + done)
        if moved == 0:
            break
        done += moved
    return done
