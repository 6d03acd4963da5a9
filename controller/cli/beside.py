"""The progress of an image beside a wait, on a terminal and nowhere else.

A wait is decided by files; this only asks the controller now and then, and says nothing of an
answer that does not come.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from controller.cli.client import call
from controller.cli.progress import Watched
from reconcilers.layout import Layout
from specs.errors import BoxError

LOOK_SECONDS = 0.3
ANSWER_SECONDS = 2.0


class Beside:
    """Of one sandbox. What was finished before is not shown."""

    def __init__(self, layout: Layout, name: str) -> None:
        self._layout, self._name = layout, name
        self._watched = Watched(name, out=sys.stderr)
        self._terminal = sys.stderr.isatty()
        self._next = 0.0
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._watched.wipe()

    def look(self) -> bool:
        """Show what is new; whether an image is being made, so that nothing else need be said."""
        now = time.monotonic()
        if not self._terminal or now < self._next:
            return self._shown
        self._next, watched = now + LOOK_SECONDS, self._watched
        path = f"/v1/sandboxes/{self._name}/build?from={watched.next}"
        try:
            seen = call(self._layout, "GET", path, seconds=ANSWER_SECONDS)
        except BoxError:
            seen = {"state": "none"}
        running: bool = seen["state"] == "running"
        if running and seen["run"] != watched.run:
            watched.begin(seen["run"])
            self._next = now
            return self._shown
        if running or (self._shown and seen.get("run") == watched.run):
            watched.show(seen)
        if not running:
            watched.wipe()
        self._shown = running
        return running
