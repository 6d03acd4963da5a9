"""Work in a thread that is never left behind: whoever is cancelled meanwhile waits for its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def to_end(work: Callable[[], T], stop: threading.Event | None = None) -> T:
    """What `work` returns, from a thread. Cancelling this sets `stop`, so that it may give up, and
    waits until it has ended: what it made is there then, to be removed.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        await asyncio.wait({working})
        if not working.cancelled():
            working.exception()  # seen, and of no interest any more
        raise
