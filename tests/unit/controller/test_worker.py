"""One pass over one sandbox that has no VM: what a change in the middle of it does."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace

import pytest

from controller import worker
from controller.driftnotes import note_drift
from controller.entry import Entry
from controller.inventory import Inventory
from controller.records import Record
from controller.store import Store
from controller.worker import Worker
from reconcilers import disk as disks
from reconcilers.act import Actor
from reconcilers.host import Host
from reconcilers.layout import Layout
from reconcilers.steps import MendReadings, Step
from specs.boxfile import Boxfile, Data, OnDelete, State
from specs.ceiling import Ceiling
from specs.errors import BoxError, HostError
from specs.reading import Reading
from tests.unit.reconcilers.hosts import host_of


@pytest.fixture
def host(layout: Layout) -> Host:
    return host_of(layout)


@pytest.fixture
def inventory(layout: Layout) -> Inventory:
    return Inventory(layout, Store(layout))


@pytest.fixture
def passes(host: Host, layout: Layout, inventory: Inventory) -> Worker:
    return Worker(
        host,
        Store(layout),
        inventory,
        lambda name, pid: None,
        lambda name: frozenset(),
        lambda name: None,
        lambda name: contextlib.nullcontext(),
    )


def enter(inventory: Inventory, name: str, data: Data | None = None) -> Entry:
    spec = Boxfile(name=name, state=State.stopped, data=data or Data())
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


@pytest.mark.parametrize(
    ("ceiling", "kept"),
    [
        (Ceiling(), False),
        (Ceiling(allow_erase=False), True),
        (HostError("policy.toml cannot be read"), True),
    ],
)
async def test_data_is_erased_only_if_the_ceiling_allows_it_at_that_moment(
    layout: Layout, inventory: Inventory, passes: Worker, ceiling: Ceiling | BoxError, kept: bool
) -> None:
    entry = enter(inventory, "web", Data(on_delete=OnDelete.erase))
    disks.create(layout.disks("web"), 16)
    entry.removing, entry.gone_since = True, time.monotonic() - 3600
    inventory.ceiling = ceiling
    await passes.run("web")
    assert "web" not in inventory.entries
    assert not layout.disks("web").exists()
    assert layout.set_aside.exists() is kept


@pytest.mark.parametrize("began", [-1, 3], ids=["nothing converged yet", "converged before"])
def test_what_a_changed_boxfile_asks_of_a_running_vm_is_no_drift(
    inventory: Inventory, began: int
) -> None:
    """Its egress alone is in readings of the running VM; a limit is its own affair."""
    entry = enter(inventory, "web")
    entry.record = replace(entry.record, generation=3)
    entry.first_generation, entry.converged_generation = 3, began

    def mends(layer: str) -> MendReadings:
        found = Reading(layer, "item", "1", "2", False, "/f", "live", "in place")
        return MendReadings(f"{layer}.item", "1", "2", unasked=True, readings=(found,))

    entry.record = replace(entry.record, generation=4)
    note_drift(inventory, entry, (mends("network"), mends("cgroup")))
    assert [drift.field for drift in entry.drift] == ["cgroup.item"]
    # the same text as when this controller began, or last converged: somebody changed the rules
    entry.record = replace(entry.record, generation=3)
    note_drift(inventory, entry, (mends("network"),))
    assert [drift.field for drift in entry.drift] == ["cgroup.item", "network.item"]


async def test_a_deleted_sandbox_goes_even_if_no_report_can_be_written(
    layout: Layout, inventory: Inventory, passes: Worker
) -> None:
    entry = enter(inventory, "web", Data(on_delete=OnDelete.erase))
    disks.create(layout.disks("web"), 16)
    entry.removing, entry.gone_since = True, time.monotonic() - 3600
    shutil.rmtree(layout.observed)
    layout.observed.symlink_to("/proc")  # nothing can be created there, not even by root
    await passes.run("web")
    assert not layout.disks("web").exists()
    assert "web" not in inventory.entries


async def test_a_record_that_cannot_learn_of_its_disk_is_a_failed_pass_and_tried_again(
    layout: Layout, inventory: Inventory, passes: Worker
) -> None:
    entry = enter(inventory, "web")
    entry.record = replace(entry.record, has_disk=False)  # lost, and rebuilt from the Boxfile
    disks.create(layout.disks("web"), 16)
    kept = layout.state.rename(layout.home / "kept")
    layout.state.symlink_to("/proc")
    await passes.run("web")
    assert entry.failure is not None and not entry.record.has_disk
    layout.state.unlink()
    kept.rename(layout.state)
    await passes.run("web")
    assert entry.failure is None and entry.record.has_disk
