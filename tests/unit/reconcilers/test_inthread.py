"""Work in a thread whose caller is cancelled: it ends first, and what it opened is closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path

import pytest

from reconcilers.inthread import to_end


@pytest.mark.parametrize("cancelled", [1, 2])
async def test_what_nobody_waits_for_any_more_is_closed(tmp_path: Path, cancelled: int) -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), list[int]()

    def work() -> int:
        begun.set()
        assert go_on.wait(10)
        return os.open(tmp_path, os.O_RDONLY)

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        os.close(descriptor)

    task = asyncio.create_task(to_end(work, unwanted=close))
    assert await asyncio.to_thread(begun.wait, 10)
    for _ in range(cancelled):
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done(), "it waits"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(closed) == 1


async def test_work_that_fails_after_its_caller_has_gone_closes_nothing() -> None:
    stop = threading.Event()

    def work() -> int:
        assert stop.wait(10), "it is told that nobody waits"
        raise OSError("too late")

    task = asyncio.create_task(to_end(work, stop, unwanted=os.close))
    await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_whoever_stays_gets_it_open(tmp_path: Path) -> None:
    found = await to_end(lambda: os.open(tmp_path, os.O_RDONLY), unwanted=os.close)
    os.fstat(found)
    os.close(found)
