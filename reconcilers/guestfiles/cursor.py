"""Where one is in a tree of any depth, with a bounded number of descriptors.

Also where no path could lead (PATH_MAX): names are remembered, and a directory that was closed
meanwhile is opened again from the root down. It opens nothing itself: `beneath` does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from reconcilers.guestfiles.beneath import open_folder, walk
from specs.errors import HostError

# Directories that are kept open above the one a cursor is in.
WINDOW = 64


class Place:
    """A directory of a tree: its name in its parent. The root has neither."""

    __slots__ = ("parent", "name", "depth")

    def __init__(self, parent: Place | None, name: bytes) -> None:
        self.parent = parent
        self.name = name
        self.depth: int = 0 if parent is None else parent.depth + 1

    def names(self) -> list[bytes]:
        """From below the root down to this one."""
        found: list[bytes] = []
        at = self
        while at.parent is not None:
            found.append(at.name)
            at = at.parent
        return found[::-1]

    def path(self, name: bytes = b"") -> bytes:
        """For people: this place, or `name` in it."""
        return b"/".join([*self.names(), name] if name else self.names())


class Cursor:
    """Where one is in the tree below `root`, a directory's descriptor, which stays the caller's."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: list[int] = []  # of the directories from below the root on; -1: closed
        self.place = Place(None, b"")

    @property
    def here(self) -> int:
        """The descriptor of the present directory, the cursor's own."""
        if not self._open:
            return self._root
        if self._open[-1] < 0:
            self._reopen()
        return self._open[-1]

    def enter(self, name: bytes, descriptor: int) -> None:
        """Go into the directory of this name, whose descriptor becomes the cursor's."""
        self._open.append(descriptor)
        self.place = Place(self.place, name)
        beyond = len(self._open) - 1 - WINDOW
        if beyond >= 0 and self._open[beyond] >= 0:
            os.close(self._open[beyond])
            self._open[beyond] = -1

    def leave(self) -> None:
        """Go back to the directory above."""
        parent = self.place.parent
        if parent is None:
            raise HostError("there is nothing above the root of the tree")
        descriptor = self._open.pop()
        if descriptor >= 0:
            os.close(descriptor)
        self.place = parent

    def _reopen(self) -> None:
        """Open the last WINDOW directories again, from the root down."""
        names = self.place.names()
        first = max(0, len(names) - WINDOW)
        at = walk(self._root, names[: first + 1])
        self._open[first] = at
        for index in range(first + 1, len(names)):
            at = self._open[index] = open_folder(at, names[index])

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[int]:
        """The descriptor of another directory of the tree, for a moment. Raises OSError."""
        if place is self.place:
            yield self.here
            return
        descriptor = walk(self._root, place.names())
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def close(self) -> None:
        while self._open:
            descriptor = self._open.pop()
            if descriptor >= 0:
                os.close(descriptor)
        self.place = Place(None, b"")
