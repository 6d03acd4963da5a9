"""Building an image when somebody asks for it, and taking away those that nobody uses.

The controller does it: whoever asked may leave, and it goes on. A build ends with its sandbox, or
when its Boxfile names another base.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from controller import mountrules
from controller.desired import choose
from controller.entry import Entry, known
from controller.inventory import Inventory
from reconcilers.builds import cache, engine, recipes
from reconcilers.host import Host
from reconcilers.images.progress import Progress, Seen
from reconcilers.images.stored import Stored, stored
from reconcilers.letgo import let_go
from reconcilers.mounts import Rules
from specs.boxfile import Boxfile
from specs.errors import BoxError, HostError, RefusedByPolicy
from specs.text import visible

CHANGE_SECONDS = 0.5
"""How soon a build ends that is for nothing any more."""
PLACING_SECONDS = 0.05
"""How soon it is tried again to discard an image while another one is placed."""
PLACING_TRIES = 100


class ImageVerbs:
    """The images of one home (`controller.service.Pictures`). `wake` asks for a pass."""

    def __init__(self, host: Host, inventory: Inventory, wake: Callable[[str], None]) -> None:
        self._host = host
        self._inventory = inventory
        self._wake = wake
        self._building: dict[str, asyncio.Task[None]] = {}

    async def build(self, name: str, *, pull: bool) -> int:
        entry = known(self._inventory.entries, name, declared=True)
        if entry.over_ceiling:
            raise RefusedByPolicy(
                f"policy.toml forbids the Boxfile of {name}", fix=f"box describe {name} says why"
            )
        board = self._host.images.board
        going = board.get(name)
        if going is not None and going.seen().state == "running" and not pull:
            return going.seen().run  # a pass is making it, or somebody asked before
        while (task := self._building.pop(name, None)) is not None:  # who asked at once has begun
            task.cancel()
            await asyncio.wait({task})
        progress = board.begin(name)
        made = asyncio.get_running_loop().create_task(self._build(name, entry, progress, pull))
        self._building[name] = made
        made.add_done_callback(lambda task: self._done(name, task))
        return progress.seen().run

    def progress(self, name: str, start: int) -> Seen | None:
        known(self._inventory.entries, name, declared=True)
        found = self._host.images.board.get(name)
        return found.seen(start) if found is not None else None

    async def images(self) -> Sequence[Stored]:
        return await asyncio.to_thread(self._stored)

    async def prune(self, *, dry_run: bool) -> Sequence[Stored]:
        images, gone = self._host.images, list[Stored]()
        unused = [each for each in await self.images() if not each.used_by]
        if dry_run:
            return unused
        doomed = list[Path]()
        for digest, kind in ((each.digest, each.kind) for each in unused):
            await asyncio.sleep(0)  # there may be many, and everybody else is served in between
            # Looked at again together with the discarding, so that no sandbox can come in between:
            # what uses an image is decided on this very thread.
            for _ in range(PLACING_TRIES):
                given = images.given
                now = {each.digest: each for each in self._stored()}.get(digest)
                if now is None or now.used_by:
                    break
                if kind == "step":
                    # No build depends on it: each disk has links to all layers beneath its own.
                    if (left := cache.discard(self._host.layout.builds, digest)) is not None:
                        doomed.append(left)
                        gone.append(now)
                    break
                if images.discard(digest, given):
                    gone.append(now)
                    break
                await asyncio.sleep(PLACING_SECONDS)
        await asyncio.to_thread(images.forget, [name for each in gone for name in each.names])
        await asyncio.to_thread(images.clear)
        for left in doomed:
            await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)
        return gone

    async def close(self) -> None:
        """End every build that was asked for."""
        tasks = list(self._building.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stored(self) -> tuple[Stored, ...]:
        specs = {name: entry.record.spec for name, entry in self._inventory.entries.items()}
        return stored(self._host.images, self._host.layout, specs)

    async def _build(self, name: str, entry: Entry, progress: Progress, pull: bool) -> None:
        spec = entry.record.spec
        assert spec is not None
        try:
            before = await self._allowed(spec)
        except (BoxError, OSError) as error:  # whoever watches would wait for ever
            told = error if isinstance(error, BoxError) else HostError(str(error))
            progress.failed(told.message, told.fix)
            return

        def rules() -> Rules:
            return mountrules.rules_for(self._host, self._inventory, name)

        building = engine.build(self._host, spec, rules, progress, again=pull)
        work = asyncio.ensure_future(building)
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=CHANGE_SECONDS)
                if not self._wanted(name, spec):
                    return
            image = work.result()
        finally:
            await let_go(work)
        if pull:
            entry.asked_image = image.digest
            before = entry.live.record.image_digest or before if entry.live else before
            if before and image.digest != before:
                # Asked for, so that the VM which is replaced now is no drift.
                entry.converged_generation = -1
                text = f"{visible(spec.base, 300)} is another image now"
                self._inventory.event(entry, "pulled", text)
        self._wake(name)

    async def _allowed(self, spec: Boxfile) -> str:
        """The digest that it means now, empty while nobody knows. Raises BoxError, OSError, also
        where its steps would need a machine that is not allowed here.
        """
        if recipes.has_steps(spec):
            choice = await choose(spec, self._host, self._inventory)
            if choice.refused:
                raise HostError(choice.message)
        network = self._host.steps_have_network()
        return await asyncio.to_thread(
            partial(recipes.digest_for, self._host.images, spec, network=network)
        )

    def _wanted(self, name: str, spec: Boxfile) -> bool:
        entry = self._inventory.entries.get(name)
        box = entry.box if entry is not None else None
        return box is not None and recipes.makes_the_same(box, spec)

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._building.get(name) is task:
            del self._building[name]
        with contextlib.suppress(asyncio.CancelledError, BoxError, OSError):
            task.result()  # what failed is in its progress; a mistake of ours is the loop's to say
