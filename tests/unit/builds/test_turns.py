"""A build with many steps does not keep others from theirs; no machine runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from reconcilers.builds import engine
from reconcilers.builds.cache import Cache
from reconcilers.builds.queue import AT_ONCE, Queue
from reconcilers.builds.recipes import Stage, recipe_of
from reconcilers.facts import Image
from reconcilers.host import Host
from reconcilers.images.progress import Progress
from specs.boxfile import Boxfile


class Build(engine._Build):
    """One without machines; `ran` is told whose turn it was, `late` how the late build stands."""

    def __init__(
        self, host: Host, box: Boxfile, ran: list[str], running: list[int], late: Progress
    ) -> None:
        recipe = recipe_of(box, "0" * 64)
        assert recipe is not None
        self._host, self._recipe, self._lacking = host, recipe, ""
        self._cache = Cache(host.layout.builds, 64)
        self._late = late
        self._progress = late if box.name == "late" else Progress()
        self._name, self._ran, self._running = str(box.name), ran, running

    async def _stage(self, key: str, stage: Stage | None, archive: int) -> str:
        assert stage is not None
        self._running[0] += 1
        assert self._running[0] <= AT_ONCE
        await self._until_late()
        self._ran.append(self._name)
        self._running[0] -= 1
        return stage.key

    async def _until_late(self) -> None:
        """The first steps take until the late build waits for a place."""
        waits = "waiting for other builds"
        while self._late.seen().stage != waits and "late" not in self._ran:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def _image(self, archive: int, digest: str) -> Image:
        assert digest == self._recipe.digest
        return Image(digest, "s", Path("root.squashfs"))


async def test_a_build_that_comes_late_waits_for_a_step_and_not_for_a_build(tmp_path: Path) -> None:
    config = SimpleNamespace(build_cache_mib=0)
    made: Any = SimpleNamespace(
        queue=Queue(), layout=SimpleNamespace(builds=tmp_path), config=config
    )
    host, ran, running = cast(Host, made), list[str](), [0]
    steps = tuple(f"sleep {number}" for number in range(20))
    boxes = [Boxfile(name=name, run=steps) for name in ("one", "two")]
    boxes.append(Boxfile(name="late", run=("true",)))
    late = Progress()
    async with asyncio.timeout(30):
        going = [asyncio.create_task(Build(host, b, ran, running, late).run()) for b in boxes[:2]]
        while running[0] < AT_ONCE:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.gather(*going, Build(host, boxes[2], ran, running, late).run())
    assert ran.index("late") <= AT_ONCE and len(ran) == 41
