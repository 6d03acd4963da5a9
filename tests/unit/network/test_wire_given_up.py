"""An ordinary user's network that is made for nobody any more: nothing of it is held."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from reconcilers import wire
from reconcilers.network.innerclient import Made


async def test_a_network_that_came_too_late_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, held = threading.Event(), threading.Event(), list[int]()

    def build(*_: Any) -> Made:
        begun.set()
        assert go_on.wait(30)
        held.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(3))
        return Made(*held)

    async def started(*_: Any) -> Any:
        return SimpleNamespace(pid=os.getpid(), start_time=0)

    monkeypatch.setattr(wire, "_start", started)
    networks = SimpleNamespace(wanted=lambda *_: None, build=build)
    wiring: Any = SimpleNamespace(networks=networks, names=None, box=None)
    with ExitStack() as opened:
        task = asyncio.create_task(wire.connect(wiring, [], opened))
        assert await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(held) == 3
    for each in held:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(each)
