"""No registry keeps the images of others, or those that are here, from whoever needs them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from reconcilers.images import building
from reconcilers.images.progress import Progress
from reconcilers.images.store import Images
from reconcilers.images.turns import Turns
from reconcilers.mounts import Rules

HERE = "0" * 64


async def test_one_registry_has_few_places_and_who_came_first_has_one_first() -> None:
    turns, order = Turns(2), list[int]()
    go_on = asyncio.Event()
    waiting = [Progress() for _ in range(5)]

    async def fetch(number: int) -> None:
        async with turns.place("slow.example", waiting[number]):
            order.append(number)
            await go_on.wait()

    tasks = [asyncio.create_task(fetch(number)) for number in range(5)]
    async with asyncio.timeout(60):
        for _ in range(5):
            await asyncio.sleep(0)  # each goes as far as it can
        assert order == [0, 1]
        assert waiting[4].seen().stage == "waiting for other images of slow.example"
        async with turns.place("other.example", Progress()), turns.place("", Progress()):
            pass
        # One that is not wanted any more takes no place, and keeps none.
        tasks[2].cancel()
        go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4]
    assert turns._lines == {}, "nothing is remembered of registries that nobody asks"


def no_rules() -> Rules:
    raise AssertionError("nothing of the host is read")


async def test_what_is_here_is_had_while_all_places_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, over = Images(tmp_path), threading.Event()
    digest = images.digest_for("builtin:busybox")
    (tmp_path / digest).mkdir()
    for name in ("sha256", "root.squashfs"):
        (tmp_path / digest / name).write_text(HERE)
    try:
        for _ in range(100):
            images.pool.submit(over.wait)
        async with asyncio.timeout(60):
            found = await building.of_base(
                images, "builtin:busybox", no_rules, Progress(), again=True
            )
        assert found.digest == digest
    finally:
        over.set()
        images.pool.shutdown()
