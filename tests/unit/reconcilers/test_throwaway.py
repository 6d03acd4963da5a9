"""Who waits for what of a throwaway machine; none is started."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from reconcilers.throwaway import TRANSFERS, Throwaways
from tests.unit.reconcilers.hosts import host_in


@pytest.mark.parametrize("when", ["before", "after"])
async def test_whoever_gives_a_machine_up_waits_until_nothing_clears_up_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Else what is still being removed is the next one's, which has the same name."""
    machines = Throwaways(host_in(tmp_path), TRANSFERS)
    calls, entered, go_on, ended = [0], threading.Event(), threading.Event(), threading.Event()

    def slow(_: object) -> None:
        calls[0] += 1
        if calls[0] == (1 if when == "before" else 2):
            entered.set()
            assert go_on.wait(60)
            ended.set()

    async def use() -> None:
        async with machines.alone("oak"):
            pass

    monkeypatch.setattr(machines, "_remove", slow)
    using = asyncio.create_task(use())
    await asyncio.to_thread(entered.wait, 60)
    using.cancel()
    await asyncio.sleep(0.05)
    assert not using.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert ended.is_set()
