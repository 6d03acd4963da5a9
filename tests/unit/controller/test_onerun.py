"""A run as the loop sees it: what its passes want, and who is told what."""

from __future__ import annotations

import pytest

from controller.entry import Entry
from controller.inventory import Inventory
from controller.onerun import OneRun
from controller.records import Record
from controller.store import Store
from reconcilers.facts import Guest, Network, Observed, Vmm
from reconcilers.layout import Layout
from reconcilers.live import Live
from specs.boxfile import Boxfile, State
from specs.errors import HostError, RefusedByPolicy
from specs.reading import Reading
from tests.unit.reconcilers.test_files import RECORD

STOPPED = Boxfile(name="oak", state=State.stopped, ram_mib=256)
NOTHING = Observed()
FAULT = Reading("cgroup", "pids", "64", "max", False, "/f", "live", "in place")


def live() -> Live:
    return Live(RECORD)


def up(*readings: Reading, frozen: bool = False, outdated: bool = False) -> Observed:
    vmm = Vmm(1, 1, "k", frozen, readings, outdated)
    return Observed(cgroup=True, vmm=vmm, guest=Guest("6", "b", 1))


async def test_its_passes_want_a_vm_until_it_is_over() -> None:
    run = OneRun(STOPPED)
    assert str(run.box.state) == "running"
    run.end()
    assert str(run.box.state) == "stopped"
    assert run.spec.state is State.running


def test_no_two_starts_have_one_key() -> None:
    assert OneRun(STOPPED).key("k") != OneRun(STOPPED).key("k") != "k"


@pytest.mark.parametrize(
    "observed",
    [NOTHING, up(FAULT), up(frozen=True), up(outdated=True), Observed(vmm=up().vmm)],
    ids=["absent", "a fault", "frozen", "of another Boxfile", "silent"],
)
async def test_a_vm_that_is_not_as_it_has_to_be_runs_nothing(observed: Observed) -> None:
    run = OneRun(STOPPED)
    run.seen(live(), observed, "the reason")
    assert run.over
    with pytest.raises(HostError, match="the reason"):
        await run.up()


async def test_it_is_up_once_and_gone_when_nothing_is_left() -> None:
    run, held = OneRun(STOPPED), live()
    run.seen(held, up(), "")
    assert await run.up() is held
    run.end()
    for left in (
        up(),
        Observed(cgroup=True),
        Observed(strays=(7,)),
        Observed(runtime=True),
        Observed(network=Network(present=True)),
    ):
        run.seen(None, left, "")
        assert not run.gone.is_set()
    run.seen(None, NOTHING, "")
    assert run.gone.is_set()


async def test_the_first_reason_counts() -> None:
    run = OneRun(STOPPED)
    run.end(HostError("first"))
    run.end(HostError("second"))
    with pytest.raises(HostError, match="first"):
        await run.up()


async def test_it_counts_for_the_ceiling_until_it_is_gone(layout: Layout) -> None:
    layout.policy.write_text("max_total_ram_mib = 400\n")
    inventory = Inventory(layout, Store(layout))
    for name in ("oak", "elm"):
        spec = STOPPED.model_copy(update={"name": name})
        inventory.entries[name] = Entry(Record(name=name, spec=spec))
    oak, elm = (inventory.entries[name] for name in ("oak", "elm"))
    assert oak.record.spec is not None and elm.record.spec is not None
    inventory.begin_run(oak, OneRun(oak.record.spec))
    assert oak.run is not None
    for over in (False, True):
        oak.run.over = over
        with pytest.raises(RefusedByPolicy, match="max_total_ram_mib"):
            inventory.begin_run(elm, OneRun(elm.record.spec))
    inventory.end_run(oak)
    inventory.begin_run(elm, OneRun(elm.record.spec))
