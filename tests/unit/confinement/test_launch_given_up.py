"""A launch whose caller is cancelled: what it started is ended, however often that happens."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from reconcilers.confinement import start
from specs.errors import ConfinementError
from specs.names import HostNames

REQUEST: Any = start.LaunchRequest(HostNames("0123456789ab", "elm"), None, (), {}, -1)  # type: ignore[arg-type]


@pytest.mark.parametrize("cancelled", [1, 2])
async def test_what_was_started_for_nobody_is_ended(
    monkeypatch: pytest.MonkeyPatch, cancelled: int
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), list[tuple[int, bool]]()
    loop = threading.get_ident()

    def launched(*_: Any, **__: Any) -> start.Launched:
        begun.set()
        assert go_on.wait(30)
        return start.Launched(os.getpid(), 77, 0, (0, 0), (), 0.0)

    monkeypatch.setattr(start, "launch_blocking", launched)
    # It may take seconds to die, in which the event loop must not stand still.
    elsewhere = lambda pidfd: ended.append((pidfd, threading.get_ident() != loop))  # noqa: E731
    monkeypatch.setattr(start, "end", elsewhere)
    task = asyncio.create_task(start.launch(REQUEST, root_files=()))
    assert await asyncio.to_thread(begun.wait, 30)
    for _ in range(cancelled):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [(77, True)]


@pytest.mark.parametrize("problem", [OSError("none left"), ConfinementError("no", layer="root")])
async def test_what_could_not_be_started_is_a_cancellation_all_the_same(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fails(*_: Any, **__: Any) -> start.Launched:
        begun.set()
        assert go_on.wait(30)
        raise problem

    monkeypatch.setattr(start, "launch_blocking", fails)
    task = asyncio.create_task(start.launch(REQUEST, root_files=()))
    assert await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
