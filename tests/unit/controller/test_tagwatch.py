"""A tag of a real registry that moves, and what is told of it; no VM runs."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller import driftbook
from controller.clock import timestamp
from controller.driftbook import TAG, corrected, entered
from controller.entry import Entry
from controller.inventory import Inventory
from controller.records import Record
from controller.store import Store
from controller.tagwatch import TagWatch
from reconcilers.images import fetch
from reconcilers.images.store import Images
from reconcilers.launched import image_of
from reconcilers.layout import Layout
from reconcilers.live import Live
from specs.boxfile import Boxfile, State
from specs.drift import Drift
from tests.registry import Registry, needs_registry, registry
from tests.unit.images.layouts import layer
from tests.unit.reconcilers.test_files import RECORD

OLD = Drift(TAG, "sha256:b", "sha256:a", "t0", "told only")


def test_what_no_step_mends_is_closed_by_itself_alone() -> None:
    mended = Drift("vmm", "running", "absent", "t0", "start")
    book, new = entered([mended], OLD)
    assert new == [OLD] and book == [mended, OLD]
    assert entered(book, OLD) == (book, [])
    book, closed = corrected(book, "t1")
    assert [d.field for d in closed] == ["vmm"]
    assert driftbook.is_open(book) == [OLD]
    book, new = entered(book, Drift(TAG, "sha256:c", "sha256:a", "t2", "told only"))
    assert [d.desired for d in driftbook.is_open(book)] == ["sha256:c"] and len(new) == 1
    book, closed = corrected(book, "t3", lasting=True)
    assert [d.desired for d in closed] == ["sha256:c"]
    assert driftbook.is_open(book) == []


pytestmark = [needs_registry, pytest.mark.timeout(200)]
needs_squashfs = pytest.mark.skipif(not shutil.which("sqfstar"), reason="no squashfs-tools")


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    with tempfile.TemporaryDirectory(prefix="boxtest-") as folder, registry(Path(folder)) as made:
        for content in ("one", "two"):
            made.layout.image(content, layer((content, "-")))
        yield made


class Watching:
    """A home with sandboxes that run from `base`, and a watch over their tags."""

    def __init__(self, layout: Layout, base: str, every: float) -> None:
        self.images = Images(layout.images)
        self.inventory = Inventory(layout, Store(layout))
        self.woken: list[str] = []
        self.watch = TagWatch(self.images, self.inventory, every, self.woken.append)
        self.entry = self.add("web", base)

    def add(self, name: str, base: str) -> Entry:
        spec = Boxfile(name=name, base=base)
        entry = Entry(Record(name=name, spec=spec, spec_digest=spec.digest(), created=timestamp()))
        self.inventory.entries[name] = entry
        return entry

    async def until(self, held: Callable[[], bool]) -> None:
        limit = time.monotonic() + 60
        while not held():
            assert time.monotonic() < limit
            self.watch.at_scan()
            await asyncio.sleep(0.05)

    @property
    def open(self) -> list[Drift]:
        return driftbook.is_open(self.entry.drift)


@needs_squashfs
async def test_a_tag_that_moved_is_told_and_left(
    layout: Layout, served: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(served.home))
    name = served.push("one", "team/moves:1")
    made = Watching(layout, name, 0.2)
    stopped = made.add("stopped", name)
    assert stopped.record.spec is not None
    stopped.record.spec.__dict__["state"] = State.stopped
    first = made.images.build(name)
    served.push("two", "team/moves:1")
    await made.until(lambda: bool(made.open))
    [drift] = made.open
    assert drift.field == "base.tag" and drift.action.endswith(
        "box build web --pull takes the other image"
    )
    assert made.images.meaning(name).startswith(drift.observed)
    assert made.images.observe(name) == first, "nothing is replaced"
    assert (made.woken, stopped.drift) == (["web"], [])
    await asyncio.sleep(0.5)
    made.watch.at_scan()
    assert len(made.entry.drift) == 1, "told once"
    # Whoever pulls has it; what was asked before counts no more.
    second = made.images.build(name, again=True)
    assert second != first
    made.watch.at_scan()
    assert made.open == []
    # A registry that does not answer says nothing about a tag.
    monkeypatch.setenv("HOME", str(served.stranger))
    served.push("one", "team/moves:1")
    await made.until(lambda: bool(made.entry.tag_error))
    assert "unauthorized" in made.entry.tag_error and made.open == []
    monkeypatch.setenv("HOME", str(served.home))
    await made.until(lambda: bool(made.open))
    assert made.entry.tag_error == ""
    served.push("two", "team/moves:1")
    await made.until(lambda: not made.open)
    await made.watch.close()


@needs_squashfs
async def test_a_vm_that_keeps_what_another_sandbox_moved_on_from_is_told_of(
    layout: Layout, served: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any look-up of its own: `web` has pulled, and `ash` runs from what there was."""
    monkeypatch.setenv("HOME", str(served.home))
    name = served.push("one", "team/kept:1")
    made = Watching(layout, name, 0)
    ash = made.add("ash", name)
    for entry, image in ((ash, made.images.build(name)), (made.entry, None)):
        assert entry.box is not None
        if image is None:
            served.push("two", "team/kept:1")
            image = made.images.build(name, again=True)
        asked = image_of(entry.box)
        entry.live = Live(replace(RECORD, image_digest=image.digest, image_asked=asked))
    means = made.images.meaning(name)
    made.watch.at_scan()
    [drift] = driftbook.is_open(ash.drift)
    assert means.startswith(drift.desired) and drift.desired != drift.observed
    assert drift.action.endswith("box build ash --pull takes the other image")
    assert made.open == []
    # One that is about to be replaced, since that was asked for, is none that stays.
    ash.asked_image = made.images.digest_for(name)
    made.watch.at_scan()
    assert driftbook.is_open(ash.drift) == []
    ash.asked_image = ""
    made.watch.at_scan()
    assert driftbook.is_open(ash.drift) != []
    # Its VM is another one by then.
    ash.live = made.entry.live
    made.watch.at_scan()
    assert driftbook.is_open(ash.drift) == []
    await made.watch.close()


async def test_only_tags_are_asked_for_and_never_before_their_time(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(fetch, "resolve", lambda name, stop: asked.append(name))
    made = Watching(layout, "builtin:busybox", 0.01)
    made.add("digest", f"127.0.0.1:1/x@sha256:{'0' * 64}")
    made.add("folder", "rootfs:/srv")
    late = Watching(layout, "127.0.0.1:1/x", 3600)
    never = Watching(layout, "127.0.0.1:1/x", 0)
    for _ in range(5):
        for each in (made, late, never):
            each.watch.at_scan()
        await asyncio.sleep(0.05)
    assert asked == []
