"""What the tests of the watched folder share: a scanner with a memory, and a record of opens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import threading
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


@contextlib.contextmanager
def record_opens(folder: Path) -> Iterator[list[str]]:
    seen: list[str] = []
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    in_open = 0x20  # inotify(7)
    assert libc.inotify_add_watch(descriptor, os.fsencode(folder), in_open) >= 0
    stop_read, stop_write = os.pipe()

    def read() -> None:
        while True:
            ready, _, _ = select.select([descriptor, stop_read], [], [])
            if descriptor in ready:
                data = os.read(descriptor, 65536)
                while data:
                    length = int.from_bytes(data[12:16], sys.byteorder)
                    seen.append(os.fsdecode(data[16 : 16 + length].rstrip(b"\0")))
                    data = data[16 + length :]
            elif ready:
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        os.write(stop_write, b"x")
        reader.join()
        for each in (descriptor, stop_read, stop_write):
            os.close(each)
