"""Work in a thread that is never left behind: whoever is cancelled meanwhile waits for its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def to_end(
    work: Callable[[], T],
    stop: threading.Event | None = None,
    pool: Executor | None = None,
    unwanted: Callable[[T], object] | None = None,
) -> T:
    """What `work` returns, from a thread, of `pool` where there is one. Cancelling this sets
    `stop`, so that it may give up, and waits until it has ended: what it made is there then, to be
    removed, and what it changes is nobody else's before. What it returned, such as a descriptor, is
    given to `unwanted` then, since nobody else has it.
    """
    working = asyncio.get_running_loop().run_in_executor(pool, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        while not working.done():
            # Whoever cancels this once more, as the end of a controller does, waits as well.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({working})
        # An exception is seen so, and of no interest any more.
        if not working.cancelled() and working.exception() is None and unwanted is not None:
            unwanted(working.result())
        raise
