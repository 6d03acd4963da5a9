"""What the tests of the watched folder share: a scanner with a memory, and a record of opens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from controller.sources.folder import FolderScan, ScanCache, scan


class Scanner:
    """Scans again and again as the controller does: one cache, the recorded sources fed back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = ScanCache()
        self.recorded: dict[str, str] = {}

    def __call__(self) -> FolderScan:
        found = scan(self.folder, self.cache, self.recorded)
        assert isinstance(found, FolderScan), found
        self.recorded |= {name: source.path for name, source in found.files.items()}
        return found


def text(**fields: object) -> bytes:
    return "".join(f"{key}: {value}\n" for key, value in fields.items()).encode()


def settle(folder: Path, cache: ScanCache) -> None:
    """Make the cache believe that every file was still when it was read, without waiting 2 s."""
    scan(folder, cache)
    for entry in cache.entries.values():
        entry.settled = True


class Opens:
    """What is opened in a folder. The kernel queues each open before it returns to whoever opens,
    so that nothing has to be waited for.
    """

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        in_open = 0x20  # inotify(7)
        assert libc.inotify_add_watch(self._descriptor, os.fsencode(folder), in_open) >= 0

    def taken(self) -> set[str]:
        """The names in the folder that were opened since the last call."""
        seen = set()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._descriptor, 65536):
                while data:
                    length = int.from_bytes(data[12:16], sys.byteorder)
                    seen.add(os.fsdecode(data[16 : 16 + length].rstrip(b"\0")))
                    data = data[16 + length :]
        return seen - {""}  # the folder itself

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def record_opens(folder: Path) -> Iterator[Opens]:
    opens = Opens(folder)
    try:
        yield opens
    finally:
        opens.close()
