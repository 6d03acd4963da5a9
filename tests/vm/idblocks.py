"""Blocks of numeric identities, each had by one test of this host at a time.

Tests of another clone, and machines of an earlier test that has not quite ended, hold identities;
a test that says which ones its sandboxes get needs some that nobody holds.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FIRST, LAST = 1_880_000_000, 1_880_099_999  # no user or service of a host is expected there
SIZE = 256


@contextmanager
def block() -> Iterator[int]:
    """The first of SIZE identities that no other test has meanwhile and no process of the host."""
    for first in range(FIRST, LAST - SIZE, SIZE):
        # A name that the kernel gives once, and takes back when this process ends in whatever way.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
            try:
                held.bind(f"\0boxtest-identities-{first}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            if taken(range(first, first + SIZE)):
                continue
            yield first
            return
    raise AssertionError(f"every block of identities from {FIRST} to {LAST} is taken")


def taken(identities: range) -> bool:
    """Whether a process has one of them, also one that has ended and waits to be asked about."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            for line in status.read_text().splitlines():
                key, _, numbers = line.partition(":")
                if key in ("Uid", "Gid") and any(int(n) in identities for n in numbers.split()):
                    return True
    return False
