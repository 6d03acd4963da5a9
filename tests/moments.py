"""Random moments of an operation, at which a test kills whoever does it.

Some are moments of the clock, the others come just after a change in the folders that the
operation works in, each change as likely as any other: the steps that put something in force take
milliseconds, and the clock alone would hardly ever meet one. Both kinds are spread over the whole
operation, which is learned by one that nobody disturbs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# inotify(7)
ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
IS_FOLDER = 0x40000000
KINDS = {
    ATTRIB: "attributes of", CLOSE_WRITE: "written:", MOVED_FROM: "moved away:",
    MOVED_TO: "moved here:", CREATE: "made:", DELETE: "deleted:",
}  # fmt: skip
# After a change, seconds: what it begins may take that long.
LATER = (0.0, 0.0, 0.001, 0.003, 0.01)


class Changes:
    """The changes in some folders and all beneath them, one after the other."""

    def __init__(self, *folders: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._descriptor >= 0
        self._paths: dict[int, Path] = {}
        self._read: list[str] = []
        self.count = 0
        for folder in folders:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._watch(folder)

    def close(self) -> None:
        os.close(self._descriptor)

    def next(self, seconds: float) -> str:
        """What changed next, empty when nothing did for so long."""
        limit = time.monotonic() + seconds
        while not self._read:
            left = max(0.0, limit - time.monotonic())
            if not select.select([self._descriptor], [], [], left)[0]:
                return ""
            self._look()
        self.count += 1
        return self._read.pop(0)

    def _watch(self, folder: Path) -> None:
        watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), sum(KINDS))
        if watch < 0:
            return  # it is gone already
        self._paths[watch] = folder
        with contextlib.suppress(OSError):
            for each in os.scandir(folder):
                if each.is_dir(follow_symlinks=False):
                    self._watch(Path(each.path))

    def _look(self) -> None:
        data = os.read(self._descriptor, 65536)
        while data:
            watch, mask, _, length = struct.unpack_from("iIII", data)
            name, data = os.fsdecode(data[16 : 16 + length].rstrip(b"\0")), data[16 + length :]
            folder = self._paths.get(watch)
            if folder is None or not name:
                continue
            if mask & IS_FOLDER and mask & (CREATE | MOVED_TO):
                self._watch(folder / name)
            told = next((word for bit, word in KINDS.items() if mask & bit), "")
            if told:
                self._read.append(f"{told} {folder.name}/{name}")


class Moments:
    """`rounds` moments of an operation that changes something in `folders`. `clock` is the share of
    them that goes by the clock.
    """

    def __init__(
        self, chance: random.Random, rounds: int, *folders: Path, clock: float = 0.5
    ) -> None:
        self._chance, self._folders = chance, folders
        by_clock = round(rounds * clock)
        parts = [(True, each) for each in self._spread(by_clock)]
        parts += [(False, each) for each in self._spread(rounds - by_clock)]
        chance.shuffle(parts)
        self._parts = parts
        self._seconds, self._changes = 0.0, 0

    def _spread(self, count: int) -> list[float]:
        """One number in each of `count` equal parts of 0 to 1."""
        return [(each + self._chance.random()) / count for each in range(count)]

    @contextlib.contextmanager
    def learned(self) -> Iterator[None]:
        """What happens within is how it goes undisturbed."""
        changes, over = Changes(*self._folders), threading.Event()

        def count() -> None:  # meanwhile, since a new folder is watched once it is heard of
            while changes.next(0.05) or not over.is_set():
                pass

        counting = threading.Thread(target=count)
        counting.start()
        began = time.monotonic()
        try:
            yield
            self._seconds = time.monotonic() - began
        finally:
            over.set()
            counting.join()
            changes.close()
        self._changes = changes.count
        assert self._changes, "it changes something, or another folder is meant"

    @contextlib.contextmanager
    def one(self) -> Iterator[Callable[[], str]]:
        """Calling what is given returns at the next moment of the operation that is begun within,
        and says which one that is.
        """
        assert self._seconds, "learned"
        by_clock, part = self._parts.pop()
        changes = Changes(*self._folders)
        try:
            yield lambda: self._at(part) if by_clock else self._after(part, changes)
        finally:
            changes.close()

    def _at(self, part: float) -> str:
        # A tenth longer than it takes: some moments are those after its end.
        seconds = part * self._seconds * 1.1
        time.sleep(seconds)
        return f"after {seconds:.2f} of {self._seconds:.2f} s"

    def _after(self, part: float, changes: Changes) -> str:
        wanted = 1 + int(part * self._changes)
        limit = time.monotonic() + 3 * self._seconds + 1
        what = last = ""
        while changes.count < wanted and time.monotonic() < limit:
            what = changes.next(1 + self._seconds)
            if not what:
                break  # this time it made fewer, and is over
            last = what
        later = self._chance.choice(LATER)
        time.sleep(later)
        return f"after change {changes.count} of {self._changes} ({last}) and {later} s"
