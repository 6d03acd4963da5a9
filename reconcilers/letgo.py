"""The end of a task that nobody waits for any more."""

from __future__ import annotations

import asyncio
from typing import Any


async def let_go(work: asyncio.Future[Any]) -> None:
    """Cancel it and wait until it has ended. That it has failed by now is of no interest, but is
    asked for all the same: of an error that nobody asked for asyncio logs the traceback.
    """
    if not work.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    elif not work.cancelled():
        work.exception()
