"""Work in a thread whose caller is cancelled before it has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest


class Slow:
    """Where the work stands still, until `given_up` has cancelled whoever waits for it."""

    def __init__(self) -> None:
        self._begun, self._go_on = threading.Event(), threading.Event()

    def stand_still(self) -> None:
        """For the work, in its thread."""
        self._begun.set()
        assert self._go_on.wait(30)

    async def given_up(self, caller: Coroutine[Any, Any, object], times: int = 1) -> None:
        """The caller of the work ends cancelled, once the work has ended."""
        task = asyncio.ensure_future(caller)
        assert await asyncio.to_thread(self._begun.wait, 30)
        for _ in range(times):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        self._go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
