"""Names that want a pass, and when. Events only ever put a name in; what changed is read again by
the pass.

A name is worked on by one worker at a time; a name that is added meanwhile is taken up again right
after. All times are on the event loop's monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator


class WorkQueue:
    """Earliest due first. Adding a name that waits already keeps the earlier time."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._busy: set[str] = set()
        self._changed = asyncio.Event()

    def add(self, name: str, delay: float = 0.0) -> None:
        """Ask for a pass over `name` in `delay` seconds at the latest."""
        due = asyncio.get_running_loop().time() + delay
        if name in self._due and self._due[name] <= due:
            return
        self._due[name] = due
        heapq.heappush(self._heap, (due, name))
        self._changed.set()

    def idle(self, horizon: float) -> bool:
        """Whether nothing is being worked on and nothing is due within `horizon` seconds."""
        limit = asyncio.get_running_loop().time() + horizon
        return not self._busy and all(due > limit for due in self._due.values())

    async def get(self) -> str:
        """Wait for the next due name that nobody works on; the caller must call `done` with it."""
        loop = asyncio.get_running_loop()
        while True:
            name, wait = self._next(loop.time())
            if name is not None:
                self._busy.add(name)
                return name
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    @contextlib.asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[None]:
        """Hold `name` as a worker does: no pass runs over it meanwhile, and one that runs is waited
        for.
        """
        while name in self._busy:
            self._changed.clear()  # whoever waits already was woken by what it stood for
            await self._changed.wait()
        self._busy.add(name)
        try:
            yield
        finally:
            self.done(name)

    def done(self, name: str) -> None:
        """The pass over `name` has ended."""
        self._busy.discard(name)
        self._changed.set()

    def _next(self, now: float) -> tuple[str | None, float | None]:
        blocked: list[tuple[float, str]] = []
        found: str | None = None
        wait: float | None = None
        while self._heap:
            due, name = self._heap[0]
            if self._due.get(name) != due:
                heapq.heappop(self._heap)  # superseded by an earlier time
                continue
            if due > now:
                wait = due - now
                break
            heapq.heappop(self._heap)
            if name in self._busy:
                blocked.append((due, name))
                continue
            del self._due[name]
            found = name
            break
        for item in blocked:
            heapq.heappush(self._heap, item)
        return found, wait
