"""Builds an image by its recipe: steps that nobody has run yet, the root handed out, a proof.

Every step runs in a confined machine of its own on a disk that goes on from the former step's. The
guest writes its root into an archive, which becomes an image as any tar file does; that is booted
and its kernel proved before it gets its name. Whatever fails leaves the finished steps, and nothing
else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from agent.process import GuestError
from reconcilers.builds import handout
from reconcilers.builds.cache import Cache
from reconcilers.builds.queue import NoNetwork, StepFailed
from reconcilers.builds.recipes import Recipe, Stage, digest_for, recipe_of
from reconcilers.builds.stepvm import Steps, watched
from reconcilers.facts import MIB, Disk, Image
from reconcilers.host import Host
from reconcilers.images import about, building
from reconcilers.images.progress import Progress
from reconcilers.images.rootwrite import write_root
from reconcilers.images.verify import hashes
from reconcilers.inthread import to_end
from reconcilers.mounts import Rules
from reconcilers.throwaway import BUILDS, Throwaways, Work, shut_down
from specs.boxfile import Boxfile, Data, Network
from specs.errors import BoxError, ChannelError, HostError

# Of the guest's root as an archive, and of the time in which it is written.
ARCHIVE_MAX = 20 << 30
HANDOUT_SECONDS = 1800.0
# With less than this left, writes of a machine may have failed; one piece of the agent's.
LEAST_ROOM = MIB


async def build(
    host: Host,
    box: Boxfile,
    rules: Callable[[], Rules],
    progress: Progress,
    *,
    again: bool = False,
    patient: bool = False,
) -> Image:
    """The image that `box` starts from: that of its base, and its steps done on it.

    `again`: what the base stands for is looked up anew.
    `patient`: steps that failed a while ago are not run again. Cancelling this ends what runs, and
    clears it away. `progress` is told all of it, and how it ended.

    Raises StepFailed, BoxError, OSError.
    """
    made = _made(host, box, rules, progress, again=again, patient=patient)
    return await building.told(progress, made)


async def for_start(host: Host, box: Boxfile, rules: Callable[[], Rules], *, again: bool) -> Image:
    """`build` for a VM that is about to start. A step that failed is not run again in every pass,
    and what it printed stays. With `again` (`pull: always`) what cannot be looked up is not
    started, as container engines do it; the reason says so.
    """
    has = host.steps_have_network()
    digest = digest_for(host.images, box, network=has)
    known = host.queue.failure(_tried(box, digest, has))
    if known is not None and not again:
        raise StepFailed(known.message, fix=known.fix)
    progress = host.images.board.begin(box.name)
    try:
        return await build(host, box, rules, progress, again=again, patient=True)
    except StepFailed:
        raise
    except BoxError as error:
        if again:
            other = "or write pull: missing, which starts the image that is here"
            error.fix = f"{error.fix}; {other}" if error.fix else other.removeprefix("or ")
        raise


async def _made(
    host: Host,
    box: Boxfile,
    rules: Callable[[], Rules],
    progress: Progress,
    *,
    again: bool,
    patient: bool,
) -> Image:
    base = await building.of_base(host.images, box.base, rules, progress, again=again)
    recipe = recipe_of(box, base.digest)
    if recipe is None:
        return base
    # Its base may mean another image by now, and then nobody else uses this one.
    with ExitStack() as taken:
        for digest in (base.digest, recipe.digest, recipe.alone):
            taken.enter_context(host.images.taken(digest))
        async with host.queue.alone(recipe.digest, progress):
            lacking = host.queue.lacks_network if patient else ""
            lacking = lacking if host.build_network() else "policy.toml says build_network = false"
            try:
                return await _with_steps(host, box, base, recipe, lacking, progress, patient)
            except NoNetwork as error:
                lacking = error.message
                host.queue.network(lacking)
            return await _with_steps(host, box, base, recipe, lacking, progress, patient)


async def _with_steps(
    host: Host,
    box: Boxfile,
    base: Image,
    recipe: Recipe,
    lacking: str,
    progress: Progress,
    patient: bool,
) -> Image:
    """The image of a recipe. `lacking`: why its steps have no network; empty where they have one,
    and then NoNetwork is raised when the host cannot give it.
    """
    names = (recipe.digest, recipe.alone) if lacking else (recipe.digest,)
    found = next(filter(None, map(host.images.at, names)), None)
    if found is not None:
        return found
    tried = _tried(box, names[-1], not lacking)
    if patient and (known := host.queue.failure(tried)) is not None:
        raise StepFailed(known.message, fix=known.fix)
    try:
        return await _Build(host, box, base, recipe, lacking, progress).run()
    except StepFailed as error:
        host.queue.failed(tried, error)
        raise


def _tried(box: Boxfile, digest: str, network: bool) -> str:
    """Names a build by the machine, too: another one may do what this one could not."""
    machine = (box.cpus, box.ram_mib, box.accel, box.isolation, box.backend, network)
    return " ".join(map(str, (digest, *machine)))


def sweep(host: Host) -> None:
    """End and remove what an earlier controller left of any build (blocking). Raises OSError,
    HostError.
    """
    Throwaways(host, BUILDS).sweep()
    _cache(host).sweep()


def _cache(host: Host) -> Cache:
    return Cache(host.layout.builds, host.config.build_disk_mib)


def _require_room(folder: Path) -> None:
    """What was written while the disk was full may be anything, whatever the guest says."""
    facts = os.statvfs(folder)
    if facts.f_bavail * facts.f_frsize < LEAST_ROOM:
        raise HostError(
            "the host's disk is full: nothing of the step is kept",
            where=str(folder),
            fix=f"free some space: df -h {folder}",
        )


class _Build:
    def __init__(
        self,
        host: Host,
        box: Boxfile,
        base: Image,
        recipe: Recipe,
        lacking: str,
        progress: Progress,
    ) -> None:
        self._host, self._base, self._recipe = host, base, recipe
        self._lacking = lacking
        self._machines = Throwaways(host, BUILDS)
        self._cache = _cache(host)
        self._progress = progress
        variables = dict(each.split("=", 1) for each in about.environment_of(base))
        seconds = host.config.build_step_seconds
        self._steps = Steps(variables | box.env, seconds, progress, lacking)
        self._readonly = box.readonly
        self._box = Boxfile(
            name=self._machines.named(recipe.digest),
            accel=box.accel,
            backend=box.backend,
            isolation=box.isolation,
            cpus=box.cpus,
            ram_mib=box.ram_mib,
            network=Network.none if lacking else Network.bridge,
            data=Data(size_mib=host.config.build_disk_mib),
        )

    async def run(self) -> Image:
        stages = self._recipe.stages
        done, key = await asyncio.to_thread(
            partial(self._cache.done, stages, network=not self._lacking)
        )
        with ExitStack() as kept:
            folder = self._host.layout.builds
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            archive = kept.enter_context(tempfile.TemporaryFile(dir=folder)).fileno()
            os.ftruncate(archive, ARCHIVE_MAX)
            *before, last = stages[done:] or (None,)
            for stage in before:  # between two of them others have their turn
                async with self._host.queue.place(self._progress):
                    key = await self._stage(key, stage, -1)
            async with self._host.queue.place(self._progress):
                key = await self._stage(key, last, archive)
                recipe, had = self._recipe, key == stages[-1].key
                image = await self._image(archive, recipe.digest if had else recipe.alone)
        most = self._host.config.build_cache_mib * MIB
        await asyncio.to_thread(self._cache.trim, most)
        return image

    async def _stage(self, key: str, stage: Stage | None, archive: int) -> str:
        """Run a stage on what `key` left, and keep it; with an archive, hand the root out. Returns
        the key of what is there then.
        """
        async with self._disk(key) as (folder, disk):
            given = (archive, True) if archive >= 0 else None
            work = Work(self._box, self._base, disk, given, building=True)
            self._progress.stage(self._title(stage, 0))
            async with self._machines.running(work) as machine:
                if stage is not None and machine.no_network:
                    raise NoNetwork(machine.no_network)
                if stage is not None and self._lacking:
                    self._progress.line(f"no network: {self._lacking}".encode())
                for index, step in enumerate(stage.steps if stage is not None else ()):
                    self._progress.stage(self._title(stage, index))
                    await self._steps.run(machine, step)
                failure: BoxError | None = None
                if given is not None:
                    self._progress.stage("handing out the root")
                    try:
                        await watched(machine, machine.client.export_root(HANDOUT_SECONDS))
                    except (GuestError, ChannelError) as error:
                        failure = error  # what the steps left is good all the same
                settled = await shut_down(machine.client)
            _require_room(folder.parent)
            if not settled:
                raise failure or ChannelError(
                    "the machine of the build did not end in good order: what its last step wrote "
                    "may not be on its disk",
                    fix="build again; if it stays, look for what the step leaves running, or give "
                    "it more RAM (ram_mib)",
                )
            if stage is not None:
                if not self._lacking:
                    self._host.queue.network("")
                key = stage.alone if self._lacking else stage.key
                await to_end(partial(self._cache.keep, folder, key))
            if failure is not None:
                raise failure
            return key

    @contextlib.asynccontextmanager
    async def _disk(self, key: str) -> AsyncIterator[tuple[Path, Disk]]:
        """A disk that begins with what `key` left, gone afterwards unless it was kept."""
        folder = self._cache.fresh()
        try:
            yield folder, await to_end(partial(self._cache.begin, key, folder))
        finally:
            await asyncio.shield(asyncio.to_thread(self._cache.drop, folder))

    def _title(self, stage: Stage | None, index: int) -> str:
        if stage is None:
            return "handing out the root"
        stages = self._recipe.stages
        number = 1 + index + sum(len(each.steps) for each in stages[: stages.index(stage)])
        return f"step {number} of {self._recipe.count}: {stage.steps[index].title}"

    async def _image(self, archive: int, digest: str) -> Image:
        images, stop = self._host.images, threading.Event()
        with images.scratch() as scratch:
            ready = scratch / "ready"
            await to_end(partial(self._write, archive, ready, stop), stop)
            self._progress.stage("booting the new image")
            await self._prove(ready / "root.squashfs", digest)
            return await to_end(partial(images.place, ready, digest))

    def _write(self, archive: int, ready: Path, stop: threading.Event) -> None:
        self._progress.stage("reading the root")
        found = handout.loaded(archive, lambda line: self._progress.line(line.encode()))
        write_root(found, ready / "root.squashfs", stop, self._progress)
        text = about.on_top(self._base, self._recipe.count, found.devices)
        (ready / about.NAME).write_text(text)

    async def _prove(self, path: Path, digest: str) -> None:
        """Boot it as a sandbox would: its channel is open only with the kernel that was started."""
        sha256, blake3 = await asyncio.to_thread(hashes, path)
        image = Image(digest, sha256, path, blake3)
        box = self._box.model_copy(update={"network": Network.none, "readonly": self._readonly})
        try:
            async with (
                self._disk("") as (_, disk),
                self._machines.running(Work(box, image, disk)) as machine,
            ):
                await shut_down(machine.client)
        except ChannelError as error:
            text = f"the image that was built does not start: {error.message}"
            raise ChannelError(text, fix=error.fix) from error
