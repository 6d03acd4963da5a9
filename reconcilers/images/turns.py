"""Whose turn it is: no registry takes all the places that there are for fetching images."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from reconcilers.images.progress import Progress


@dataclass
class _Line:
    places: asyncio.Semaphore
    users: int = 0


class Turns:
    """For each registry `most` places, and as many for what lies on this host."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[str, _Line] = {}

    @contextlib.asynccontextmanager
    async def place(self, registry: str, progress: Progress) -> AsyncIterator[None]:
        """One of the places of `registry`, empty for this host; who came first has it first."""
        line = self._lines.setdefault(registry, _Line(asyncio.Semaphore(self._most)))
        line.users += 1
        try:
            if line.places.locked():
                progress.stage(f"waiting for other images of {registry or 'this host'}")
            async with line.places:
                yield
        finally:
            line.users -= 1
            if not line.users:
                self._lines.pop(registry, None)
