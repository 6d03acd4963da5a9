"""Who builds what: never two the same image, and few at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from reconcilers.images.progress import Progress

# Each is a VM with the RAM of its sandbox, besides those that run.
AT_ONCE = 2
LOOK_SECONDS = 1.0


class Queue:
    """One for all builds of a controller."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._building: dict[str, Progress] = {}

    @contextlib.asynccontextmanager
    async def alone(self, digest: str, progress: Progress) -> AsyncIterator[None]:
        """The only one that builds this image. Whoever waits sees the progress of who does."""
        while digest in self._building:
            progress.follow(self._building[digest])
            await asyncio.sleep(LOOK_SECONDS)
        progress.follow(None)
        self._building[digest] = progress
        try:
            yield
        finally:
            del self._building[digest]

    @contextlib.asynccontextmanager
    async def place(self, progress: Progress) -> AsyncIterator[None]:
        """One of the few places."""
        if self._places.locked():
            progress.stage("waiting for other builds")
        async with self._places:
            yield
