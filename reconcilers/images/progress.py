"""What the making of an image says of itself: stage, bytes, and the lines that its steps print.

Kept in memory, bounded, and readable while it goes on and after it failed. Nothing is decided by
it. Lines are as they came, a guest's own: whoever shows them escapes them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

LINES_KEPT = 2000
BYTES_KEPT = 1 << 20  # of all these lines; they are kept for every sandbox
LINE_MAX = 4096  # bytes of one line that are kept
STAGE_MAX = 300  # characters

Raw = bytes  # the method `bytes` hides the type below


@dataclass(frozen=True)
class Seen:
    """A moment of it. `lines` are those from the asked number on that are still kept, `first` the
    number of the first of them. `total` is 0 where nobody knows it. `state` is `running`, `done` or
    `failed`, and `failure` then says why; `digest` is that of the finished image. `run` counts how
    often it was begun.
    """

    run: int
    state: str
    stage: str
    done: int
    total: int
    first: int
    lines: tuple[Raw, ...]
    failure: str
    fix: str
    digest: str = ""


class Progress:
    """Of one image for one sandbox. Any thread may call."""

    def __init__(self, run: int = 1) -> None:
        self._lock = threading.Lock()
        self._run = run
        self._state = "running"
        self._stage = ""
        self._done = self._total = 0
        self._count = 0  # of all lines, those not kept included
        self._lines: deque[Raw] = deque()
        self._held = 0  # bytes in them
        self._failure = self._fix = self._digest = ""
        self._leader: Progress | None = None

    def stage(self, text: str) -> None:
        """Another part of the work begins, of which no bytes are done yet."""
        with self._lock:
            self._stage = text[:STAGE_MAX]
            self._done = self._total = 0

    def bytes(self, done: int, total: int = 0) -> None:
        """So many bytes of this stage are done; `total` is 0 where nobody knows it."""
        with self._lock:
            self._done, self._total = max(0, done), max(0, total)

    def line(self, raw: Raw) -> None:
        """A step printed this, its line feed not included."""
        with self._lock:
            self._count += 1
            self._lines.append(raw[:LINE_MAX])
            self._held += len(self._lines[-1])
            while len(self._lines) > LINES_KEPT or self._held > BYTES_KEPT:
                self._held -= len(self._lines.popleft())

    def follow(self, leader: Progress | None) -> None:
        """Another one is making the same image: what is seen is its progress, until None."""
        with self._lock:
            self._leader = leader if leader is not self else None

    def succeeded(self, digest: str = "") -> None:
        self._end("done", "", "", digest)

    def failed(self, message: str, fix: str = "") -> None:
        self._end("failed", message, fix, "")

    def _end(self, state: str, message: str, fix: str, digest: str) -> None:
        with self._lock:
            self._leader = None
            self._state, self._digest = state, digest
            self._failure, self._fix = message, fix

    def seen(self, start: int = 0) -> Seen:
        """How it stands, with the lines from number `start` on."""
        with self._lock:
            leader = self._leader
            if leader is None:
                return self._seen(start)
        found = leader.seen(start)
        return Seen(
            self._run, "running", found.stage, found.done, found.total, found.first, found.lines,
            "", "",
        )  # fmt: skip

    def _seen(self, start: int) -> Seen:
        oldest = self._count - len(self._lines)
        first = min(max(start, oldest), self._count)
        lines = tuple(self._lines)[first - oldest :]
        return Seen(
            self._run, self._state, self._stage, self._done, self._total, first, lines,
            self._failure, self._fix, self._digest,
        )  # fmt: skip


@dataclass
class Board:
    """The latest progress for each sandbox, by its name."""

    _found: dict[str, Progress] = field(default_factory=dict)

    def begin(self, sandbox: str) -> Progress:
        """A new one in the place of what was there."""
        former = self._found.get(sandbox)
        made = Progress(former.seen().run + 1 if former is not None else 1)
        self._found[sandbox] = made
        return made

    def get(self, sandbox: str) -> Progress | None:
        return self._found.get(sandbox)

    def keep_only(self, known: Mapping[str, object]) -> None:
        """Forget sandboxes that are no more."""
        for name in self._found.keys() - known.keys():
            del self._found[name]
