"""Who builds what, and how long a failure is remembered."""

from __future__ import annotations

import asyncio

import pytest

from reconcilers.builds import queue
from reconcilers.builds.queue import AT_ONCE, Queue, StepFailed
from reconcilers.images.progress import Progress


async def test_never_two_build_the_same_image_and_who_waits_sees_who_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "LOOK_SECONDS", 0.01)
    line, order = Queue(), list[str]()
    first, second = Progress(), Progress()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def one() -> None:
        async with line.alone("a", first):
            begun.set()
            first.stage("step 1 of 2")
            await go_on.wait()
            order.append("one")

    async def other() -> None:
        async with line.alone("a", second):
            order.append("other")

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(one())
        await begun.wait()
        tasks.create_task(other())
        for _ in range(500):
            await asyncio.sleep(0.01)
            if second.seen().stage == "step 1 of 2":
                break
        assert second.seen().stage == "step 1 of 2"
        async with line.alone("b", Progress()):
            assert order == []
        go_on.set()
    assert order == ["one", "other"] and second.seen().stage == ""


async def test_few_build_at_once() -> None:
    line, waiting = Queue(), Progress()
    async with line.place(Progress()), line.place(Progress()):
        assert AT_ONCE == 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), line.place(waiting):
                pass
        assert waiting.seen().stage == "waiting for other builds"
    async with asyncio.timeout(5), line.place(Progress()):
        pass


def test_a_failure_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    line, error = Queue(), StepFailed("it ended with status 1")
    line.failed("a", error)
    assert line.failure("a") is error and line.failure("b") is None
    monkeypatch.setattr(queue, "AGAIN_SECONDS", 0.0)
    assert line.failure("a") is None
