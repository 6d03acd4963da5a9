"""Work in a thread that is never left behind: whoever is cancelled meanwhile waits for its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

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
    given to `unwanted`, in a thread as well, since nobody else has it.
    """
    loop = asyncio.get_running_loop()
    working = loop.run_in_executor(pool, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        failed = await _ended(working)
        if not failed and unwanted is not None:
            await _ended(loop.run_in_executor(pool, unwanted, working.result()))
        raise


async def _ended(work: asyncio.Future[Any]) -> bool:
    """Wait for it; true when it failed, which is seen so, and of no interest any more. Whoever
    cancels this, as the end of a controller does, waits as well.
    """
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({work})
    return work.cancelled() or work.exception() is not None
