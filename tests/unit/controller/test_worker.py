"""One pass over one sandbox that has no VM: what a change in the middle of it does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import worker
from controller.entry import Entry
from controller.home import ensure_home
from controller.inventory import Inventory
from controller.records import Record
from controller.store import Store
from controller.worker import Worker
from reconcilers import disk as disks
from reconcilers.act import Actor
from reconcilers.backend import HostFacts
from reconcilers.boot import BootFiles
from reconcilers.confinement.identity import IdentityRegistry
from reconcilers.host import Host
from reconcilers.image import Images
from reconcilers.layout import Layout
from reconcilers.steps import Step
from specs.boxfile import Boxfile, State
from specs.config import Config

pytestmark = pytest.mark.needs_root


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    found = ensure_home(tmp_path / "home")
    yield found
    shutil.rmtree(found.runtime)


@pytest.fixture
def host(layout: Layout) -> Host:
    return Host(
        layout=layout,
        config=Config(),
        facts=HostFacts(None, None, None),
        images=Images(layout.images),
        boot_files=BootFiles(layout.kernels),
        identities=IdentityRegistry(
            lock=layout.home / "ids.lock", registry=layout.home / "ids.toml"
        ),
        backends={},
    )


@pytest.fixture
def inventory(layout: Layout) -> Inventory:
    return Inventory(layout, Store(layout))


@pytest.fixture
def passes(host: Host, layout: Layout, inventory: Inventory) -> Worker:
    return Worker(host, Store(layout), inventory, lambda name, pid: None, lambda name: frozenset())


def enter(inventory: Inventory, name: str) -> Entry:
    spec = Boxfile(name=name, state=State.stopped)
    record = Record(name=name, spec=spec, spec_digest=spec.digest(), has_disk=True)
    entry = inventory.entries[name] = Entry(record)
    return entry


async def test_a_boxfile_that_comes_back_during_the_removal_keeps_its_disk(
    layout: Layout, inventory: Inventory, passes: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = enter(inventory, "web")
    disks.create(layout.disks("web"), 16)
    layout.sandbox_runtime("web").mkdir(mode=0o700)
    entry.removing = True

    class ThenItReturns(Actor):
        async def act(self, step: Step) -> None:
            await super().act(step)
            entry.removing = False

    monkeypatch.setattr(worker, "Actor", ThenItReturns)
    await passes.run("web")
    assert not layout.sandbox_runtime("web").exists(), "the removal never began"
    assert disks.observe(layout.disks("web")) is not None
    assert not layout.set_aside.exists()
