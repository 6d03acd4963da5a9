"""An ordinary user's network that is made for nobody any more: nothing of it is held."""

from __future__ import annotations

import os
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from reconcilers import wire
from reconcilers.network.innerclient import Made
from tests.unit.givenup import Slow


async def test_a_network_that_came_too_late_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, held = Slow(), list[int]()

    def build(*_: Any) -> Made:
        slow.stand_still()
        held.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(3))
        return Made(*held)

    async def started(*_: Any) -> Any:
        return SimpleNamespace(pid=os.getpid(), start_time=0)

    monkeypatch.setattr(wire, "_start", started)
    networks = SimpleNamespace(wanted=lambda *_: None, build=build)
    wiring: Any = SimpleNamespace(networks=networks, names=None, box=None)
    with ExitStack() as opened:
        await slow.given_up(wire.connect(wiring, [], opened))
    assert len(held) == 3
    for each in held:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(each)
