"""What is told of a transfer: counts, and each name that was left out or is not as it was.

The names may be a guest's and as many as it likes: they are made safe to show here, and only so
many are kept. It must not decide what is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agent.archive import Reason
from reconcilers.guestfiles.beneath import shown

KEPT = 1000
PATH_SHOWN = 400

WORDS = {
    Reason.FIFO: "a FIFO, left out",
    Reason.SOCKET: "a socket, left out",
    Reason.CHARACTER_DEVICE: "a character device, left out",
    Reason.BLOCK_DEVICE: "a block device, left out",
    Reason.UNREADABLE: "cannot be read, left out",
    Reason.TOO_DEEP: "too many directories deep, left out",
    Reason.CHANGED: "changed while it was read",
    Reason.ATTRIBUTES: "too many extended attributes, which are left out",
    Reason.UNKNOWN_KIND: "of an unknown kind, left out",
}


@dataclass
class Notes:
    """`paths`: the first KEPT of them with what is said of each; `total`: how many there were."""

    files: int = 0
    folders: int = 0
    links: int = 0
    data: int = 0  # bytes
    total: int = 0
    paths: list[tuple[str, str]] = field(default_factory=list)

    def add(self, path: Callable[[], bytes], what: str) -> None:
        """Where it was is asked for only where that is kept: of a deep tree it is long, and there
        may be a remark on each name in it.
        """
        self.total += 1
        if len(self.paths) < KEPT:
            self.paths.append((shown(path(), PATH_SHOWN), what))

    def reason(self, path: Callable[[], bytes], number: int) -> None:
        """What a Reason says; a number that is none says little."""
        known = number in set(Reason)
        self.add(path, WORDS[Reason(number)] if known else WORDS[Reason.UNKNOWN_KIND])
