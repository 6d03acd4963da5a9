"""The queue holds names and times, nothing else."""

from __future__ import annotations

import asyncio

import pytest

from controller import backoff
from controller.workqueue import WorkQueue


async def test_the_earliest_due_name_comes_first() -> None:
    queue = WorkQueue()
    queue.add("late", 0.5)  # longer than two lines take on a busy host
    queue.add("now")
    assert [await queue.get(), await queue.get()] == ["now", "late"]


async def test_a_name_added_twice_is_given_once_at_the_earlier_time() -> None:
    queue = WorkQueue()
    queue.add("oak", 60.0)
    queue.add("oak")
    queue.add("oak", 60.0)
    assert await asyncio.wait_for(queue.get(), 20) == "oak"
    queue.done("oak")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.05)


async def test_a_name_in_work_is_not_given_to_a_second_worker() -> None:
    queue = WorkQueue()
    queue.add("oak")
    assert await queue.get() == "oak"
    queue.add("oak")
    queue.add("elm")
    assert await queue.get() == "elm"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.05)
    queue.done("oak")
    assert await asyncio.wait_for(queue.get(), 20) == "oak"


async def test_idle_looks_ahead() -> None:
    queue = WorkQueue()
    queue.add("oak", 10.0)
    assert queue.idle(5.0)
    assert not queue.idle(20.0)


async def test_a_waiting_worker_wakes_for_a_new_name() -> None:
    queue = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0.01)
    queue.add("oak")
    assert await asyncio.wait_for(waiting, 20) == "oak"


def test_delays_grow_and_are_capped() -> None:
    delays = [backoff.delay(attempt) for attempt in range(1, 30)]
    assert backoff.FIRST <= delays[0] <= backoff.FIRST + 1.0
    assert all(delay <= backoff.CAP for delay in delays)
    assert delays[-1] == backoff.CAP
    assert delays[5] > delays[0]
    assert backoff.delay(10**6) == backoff.CAP


@pytest.mark.parametrize("turns", range(5))
async def test_a_worker_that_is_cancelled_while_a_name_arrives_ends(turns: int) -> None:
    """The two may meet in any turn of the event loop; a lost cancellation would never end."""
    queue = WorkQueue()
    queue.add("late", 60)  # so that the wait has a limit

    async def work() -> None:
        while True:
            await queue.get()

    worker = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    queue.add("oak")
    for _ in range(turns):
        await asyncio.sleep(0)
    worker.cancel()
    done, _ = await asyncio.wait({worker}, timeout=20)
    assert done == {worker}
