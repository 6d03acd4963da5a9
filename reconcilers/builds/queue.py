"""Who builds what: never two the same image, and few at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from reconcilers.images.progress import Progress
from specs.errors import BoxError

# Machines; each is a VM with the RAM of its sandbox, besides those that run.
AT_ONCE = 2
LOOK_SECONDS = 1.0
# A step that failed is not run again by itself before; passes come more often than that.
AGAIN_SECONDS = 600.0


class StepFailed(BoxError):
    """A step of the Boxfile ended badly."""


class NoNetwork(BoxError):
    """The host cannot give the steps of a build the network that they may have."""


class Queue:
    """One for all builds of a controller."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._building: dict[str, Progress] = {}
        self._failed: dict[str, tuple[float, StepFailed]] = {}
        self._lacking: tuple[float, str] = (0.0, "")

    def network(self, lacking: str) -> None:
        """Why this host could not give a build a network just now; empty where it could."""
        self._lacking = (time.monotonic() + AGAIN_SECONDS, lacking)

    @property
    def lacks_network(self) -> str:
        """Why it could not, as long as it is not tried again by itself; empty where it may."""
        until, why = self._lacking
        return why if time.monotonic() < until else ""

    def failed(self, build: str, error: StepFailed) -> None:
        """This build, of an image by a machine, failed just now."""
        if len(self._failed) > 1000:
            self._failed.clear()
        self._failed[build] = (time.monotonic(), error)

    def failure(self, build: str) -> StepFailed | None:
        """How it failed, as long as it is not tried again by itself."""
        moment, error = self._failed.get(build, (0.0, None))
        return error if time.monotonic() < moment + AGAIN_SECONDS else None

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
        """One of the few places, for one machine at a time; who came first has it first."""
        if self._places.locked():
            progress.stage("waiting for other builds")
        async with self._places:
            yield
