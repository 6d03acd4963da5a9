"""A lock that all controllers of this host share: one at a time, for a moment.

flock(2), because the kernel drops it with the last descriptor: a killed controller leaves nothing.
It must never be held while a guest, or anybody else outside, is waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from specs.errors import HostError

_EVERY = 0.01  # seconds between two tries; flock(2) itself knows no limit


@contextlib.contextmanager
def held(path: Path, seconds: float) -> Iterator[None]:
    """Holds the lock on the file `path`, made when it is not there (blocking).

    Raises OSError when it cannot be opened, HostError when somebody else held it for `seconds`.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise HostError(
                    f"another process has held this lock for {seconds:g} s",
                    where=str(path),
                    fix=f"`fuser -v {path}` names it; one that was stopped goes on with kill -CONT",
                )
            time.sleep(_EVERY)
        yield
    finally:
        os.close(descriptor)
