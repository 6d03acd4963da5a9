"""What the API does with images, to real files by the parts of a real controller; no VM runs."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.entry import Entry
from controller.imageverbs import ImageVerbs
from controller.inventory import Inventory
from controller.keptimage import kept_image
from controller.records import Record
from controller.store import Store
from reconcilers import launchrecord
from reconcilers.accel import Choice
from reconcilers.builds import cache, engine, recipes
from reconcilers.facts import Image
from reconcilers.host import launch_key
from reconcilers.images import sources
from reconcilers.images.progress import Progress, Seen
from reconcilers.images.store import Images
from reconcilers.images.verify import open_verified
from reconcilers.launched import image_of
from reconcilers.layout import Layout
from reconcilers.live import Live
from specs.boxfile import Boxfile, State
from specs.conditions import Reason
from specs.errors import NoSandbox, RefusedByPolicy
from tests.unit.cli.support import ROOT
from tests.unit.programs import needs_mke2fs
from tests.unit.reconcilers.hosts import host_of
from tests.unit.reconcilers.test_files import RECORD

pytestmark = pytest.mark.skipif(not shutil.which("sqfstar"), reason="squashfs-tools is missing")


class Made:
    """Sandboxes that start from folders, stopped, and the verbs over their images."""

    def __init__(self, layout: Layout, folder: Path) -> None:
        self.layout, self.folder = layout, folder
        self.host = host_of(layout)
        self.images = self.host.images
        self.inventory = Inventory(layout, Store(layout))
        self.woken: list[str] = []
        self.verbs = ImageVerbs(self.host, self.inventory, self.woken.append)

    def sandbox(self, name: str, content: str = "") -> Path:
        """One with a folder of its own; what it starts from."""
        root = self.folder / name
        root.mkdir(exist_ok=True)
        (root / "file").write_text(content or name)
        spec = Boxfile(name=name, state=State.stopped, base=f"rootfs:{root}")
        record = Record(name=name, spec=spec, spec_digest=spec.digest())
        self.inventory.entries[name] = Entry(record)
        return root

    async def built(self, name: str, *, pull: bool = False) -> Seen:
        await self.verbs.build(name, pull=pull)
        seen = await self.ended(name)
        for task in [*self.verbs._building.values()]:
            await asyncio.wait({task})  # it tells how it ended, and then does what follows
        return seen

    async def ended(self, name: str) -> Seen:
        progress = self.images.board.get(name)
        assert progress is not None
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            seen = progress.seen()
            if seen.state != "running" and name not in self.verbs._building:
                return seen
            await asyncio.sleep(0.02)
        raise AssertionError(progress.seen())


@pytest.fixture
def made(layout: Layout, tmp_path: Path) -> Made:
    return Made(layout, tmp_path)


async def test_an_image_is_built_for_who_asks(made: Made) -> None:
    root = made.sandbox("web")
    assert made.verbs.progress("web", 0) is None
    seen = await made.built("web")
    image = made.images.observe(f"rootfs:{root}")
    assert image is not None
    assert (seen.state, seen.digest) == ("done", image.digest)
    again = await made.built("web")
    assert (again.run, again.digest) == (2, image.digest)
    assert made.woken == ["web", "web"]


async def test_only_another_image_is_another_one(made: Made) -> None:
    root = made.sandbox("web")
    first = (await made.built("web")).digest
    entry = made.inventory.entries["web"]
    entry.converged_generation = entry.record.generation
    assert (await made.built("web", pull=True)).digest == first
    assert entry.converged_generation == entry.record.generation
    (root / "file").write_text("another")
    assert (await made.built("web")).digest == first, "what it meant is what it means"
    second = (await made.built("web", pull=True)).digest
    assert second != first
    assert entry.converged_generation == -1, "asked for, so no drift"
    assert made.images.digest_for(f"rootfs:{root}") == second
    assert entry.asked_image == second, "and its VM does not keep the one it has"


async def test_who_did_not_ask_keeps_what_its_vm_was_started_from(made: Made) -> None:
    root = made.sandbox("web")
    base = f"rootfs:{root}"
    first = (await made.built("web")).digest
    ash = made.inventory.entries["ash"] = Entry(
        Record(name="ash", spec=Boxfile(name="ash", base=base))
    )
    assert ash.box is not None
    asked = image_of(ash.box)
    key = launch_key(ash.box, Choice("tcg", Reason.Accepted, ""), first)
    record = replace(RECORD, key=key, image_digest=first, image_asked=asked)
    ash.live, ash.choice = Live(record), Choice("tcg", Reason.Accepted, "")
    (root / "file").write_text("another")
    second = (await made.built("web", pull=True)).digest
    assert kept_image(ash, ash.box) == first != second
    # Its own, which finds what is known by now: that is another one than its VM has.
    ash.converged_generation = ash.record.generation
    assert (await made.built("ash", pull=True)).digest == second
    assert (kept_image(ash, ash.box), ash.converged_generation) == ("", -1)


async def test_only_a_pull_is_told_as_one(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it steps may be run again, with a network now, and the VM that runs stays."""
    made.sandbox("web")
    await made.built("web")
    entry = made.inventory.entries["web"]
    entry.converged_generation = entry.record.generation

    async def other(
        host: object, box: object, rules: object, progress: Progress, **_: Any
    ) -> Image:
        progress.succeeded("1" * 64)
        return Image("1" * 64, "0" * 64, made.layout.images)

    monkeypatch.setattr(engine, "build", other)
    for pull in (False, True):
        await made.built("web", pull=pull)
        assert (entry.converged_generation == -1) is pull
        assert bool(entry.asked_image) is pull


async def test_what_stands_against_it_from_the_beginning_ends_it(made: Made) -> None:
    made.sandbox("web")
    made.layout.images.mkdir(parents=True, exist_ok=True)
    (made.layout.images / "refs.toml").write_text("garbled [")
    seen = await made.built("web")
    assert seen.state == "failed" and "refs.toml" in seen.failure and seen.fix


async def test_why_it_failed_can_be_read_afterwards(made: Made) -> None:
    root = made.sandbox("web")
    shutil.rmtree(root)
    seen = await made.built("web")
    assert seen.state == "failed"
    assert str(root) in seen.failure and seen.fix.startswith("ls -l")
    with pytest.raises(NoSandbox):
        await made.verbs.build("moss", pull=False)
    made.inventory.entries["web"].over_ceiling = True
    with pytest.raises(RefusedByPolicy):
        await made.verbs.build("web", pull=False)


async def test_a_build_ends_with_its_sandbox(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.sandbox("web")
    held = threading.Event()
    real = sources.opened

    def slow(*arguments: object) -> object:
        held.wait(30)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sources, "opened", slow)
    await made.verbs.build("web", pull=False)
    assert await made.verbs.build("web", pull=False) == 1, "whoever asks again joins"
    made.inventory.entries["web"].removing = True
    await asyncio.sleep(1)
    held.set()
    assert "given up" in (await made.ended("web")).failure
    assert made.images.present() == {}


async def test_of_those_who_ask_anew_at_once_one_builds(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a build that nobody knows would outlive the controller's end."""
    made.sandbox("web")
    held, real = threading.Event(), sources.opened

    def slow(*arguments: object) -> object:
        held.wait(0.3)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sources, "opened", slow)
    await made.verbs.build("web", pull=False)
    await asyncio.gather(*(made.verbs.build("web", pull=True) for _ in range(3)))
    await made.verbs.close()
    left = [task for task in asyncio.all_tasks() if "ImageVerbs._build" in repr(task)]
    assert left == []


async def test_only_what_nobody_uses_is_pruned(made: Made) -> None:
    kept, gone = made.sandbox("kept"), made.sandbox("gone")
    for name in ("kept", "gone"):
        await made.built(name)
    own = made.images.build("builtin:busybox")
    (made.layout.images / ("0" * 64)).mkdir()
    del made.inventory.entries["gone"]
    would = await made.verbs.prune(dry_run=True)
    assert [each.names for each in would] == [(), (f"rootfs:{gone}",)]
    assert len(made.images.present()) == 4
    removed = await made.verbs.prune(dry_run=False)
    assert removed == would
    left = {each.digest: each.used_by for each in await made.verbs.images()}
    image = made.images.observe(f"rootfs:{kept}")
    assert image is not None
    assert left == {image.digest: ("kept",), own.digest: ("box",)}
    assert made.images.digest_for(f"rootfs:{gone}") == "", "it is looked up anew"
    assert {path.name for path in made.layout.images.iterdir()} == {*left, "refs.toml"}


@needs_mke2fs
async def test_what_steps_left_goes_with_the_last_boxfile_that_has_them(made: Made) -> None:
    root = made.sandbox("web")
    made.images.build(f"rootfs:{root}")
    entry = made.inventory.entries["web"]
    spec = Boxfile(name="web", state=State.stopped, base=f"rootfs:{root}", run=("one", "two"))
    entry.record = replace(entry.record, spec=spec, spec_digest=spec.digest())
    recipe = recipes.recipe_of(spec, made.images.digest_for(spec.base))
    assert recipe is not None
    keys = [stage.key for stage in recipe.stages]
    steps = cache.Cache(made.layout.builds, 64)
    for former, key in (("", keys[0]), (keys[0], keys[1]), (keys[0], "f" * 64)):
        steps.begin(former, working := steps.fresh())
        steps.keep(working, key)
    found = [each for each in await made.verbs.images() if each.kind == "step"]
    assert [each.used_by for each in found] == [("web",), ("web",), ()]
    assert all(each.bytes > 0 for each in found)
    [gone] = await made.verbs.prune(dry_run=False)
    assert gone.digest == "f" * 40
    assert steps.done(recipe.stages)[0] == 2
    # Another recipe, say a line that was changed: the step that both begin with stays.
    spec = spec.model_copy(update={"run": ("one", "three")})
    entry.record = replace(entry.record, spec=spec, spec_digest=spec.digest())
    [gone] = await made.verbs.prune(dry_run=False)
    assert (gone.digest, gone.names) == (keys[1][:40], ())
    assert steps.done(recipe.stages)[0] == 1
    assert not list(made.layout.builds.glob(".*"))


@needs_mke2fs
async def test_others_are_served_while_much_is_pruned(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step that goes is a look at all that are there."""
    steps, turns = cache.Cache(made.layout.builds, 64), [0]
    for key in ("a" * 64, "b" * 64, "c" * 64):
        steps.begin("", working := steps.fresh())
        steps.keep(working, key)
    seen, discard = list[int](), cache.discard

    def counted(folder: Path, name: str) -> Path | None:
        seen.append(turns[0])
        return discard(folder, name)

    async def other() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(cache, "discard", counted)
    going = asyncio.create_task(other())
    assert len(await made.verbs.prune(dry_run=False)) == 3
    going.cancel()
    assert len(set(seen)) == 3, seen


async def test_what_a_vm_was_started_from_stays_though_its_boxfile_means_another(
    made: Made,
) -> None:
    root = made.sandbox("web")
    await made.built("web")
    started = made.images.observe(f"rootfs:{root}")
    assert started is not None
    (root / "file").write_text("another")
    await made.built("web", pull=True)
    path = made.layout.launch_record("web")
    path.parent.mkdir(parents=True)
    launchrecord.write(path, replace(RECORD, image_sha256=started.sha256))
    assert await made.verbs.prune(dry_run=False) == []
    path.unlink()
    assert [each.digest for each in await made.verbs.prune(dry_run=False)] == [started.digest]


async def test_an_image_that_is_built_on_stays_though_its_name_means_another(made: Made) -> None:
    root = made.sandbox("web")
    first = (await made.built("web")).digest
    (root / "file").write_text("another")
    await made.built("web", pull=True)
    with made.images.taken(first), made.images.taken(first):
        assert await made.verbs.prune(dry_run=False) == []
        assert made.images.at(first) is not None
    assert [each.digest for each in await made.verbs.prune(dry_run=False)] == [first]


async def test_no_image_goes_that_a_build_is_about_to_give(made: Made) -> None:
    """Sandboxes come, are built and go while somebody prunes all the time."""
    names = [f"s{number}" for number in range(4)]
    for name in names:
        made.sandbox(name, content="the same in all of them")
    ended = asyncio.Event()

    async def prune() -> int:
        count = 0
        while not ended.is_set():
            count += len(await made.verbs.prune(dry_run=False))
            await asyncio.sleep(0)
        return count

    pruning = asyncio.ensure_future(prune())
    dice = random.Random(1)
    for _ in range(30):
        name = dice.choice(names)
        made.sandbox(name, content=f"{dice.randrange(3)}")
        seen = await made.built(name, pull=True)
        assert seen.state == "done", seen
        image = made.images.observe(f"rootfs:{made.folder / name}")
        assert image is not None, "it was there when the build said so, and stays for its sandbox"
        os.close(open_verified(image))
    ended.set()
    assert await pruning > 0


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.long)])
def test_a_prune_killed_at_any_moment_leaves_whole_images(
    layout: Layout, tmp_path: Path, rounds: int
) -> None:
    program = (
        "import sys; from pathlib import Path; from reconcilers.images.store import Images\n"
        "images = Images(Path(sys.argv[1])); images.sweep(); print('ready', flush=True)\n"
        "[images.discard(each, images.given) for each in images.present()]; images.clear()"
    )
    root, dice = tmp_path / "root", random.Random(rounds)
    root.mkdir()
    for number in range(400):
        (root / f"f{number}").write_text("x" * number)
    for number in range(rounds):
        images = Images(layout.images)
        for each in range(3):
            (root / "file").write_text(f"{number} {each}")
            images.build(f"rootfs:{root}", again=True)
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(layout.images)],
            cwd=ROOT, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(dice.uniform(0, 0.002))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        images = Images(layout.images)
        for image in images.present().values():
            assert image is not None, "either there and whole, or gone"
            os.close(open_verified(image))
        images.sweep()
        assert not list(layout.images.glob(".*"))
