"""A run as the loop sees it: what its passes want, and who is told what."""

from __future__ import annotations

import asyncio

import pytest

from agent.messages import ExecRequest
from controller.entry import Entry
from controller.inventory import Inventory
from controller.onerun import OneRun
from controller.records import Record
from controller.runs import RunCommand
from controller.store import Store
from reconcilers.facts import Guest, Network, Observed, Unknown, Vmm
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


async def test_one_that_is_up_may_differ_for_a_while_but_not_be_gone() -> None:
    run, held = OneRun(STOPPED), live()
    run.seen(held, up(), "")
    for differs in (up(FAULT), up(frozen=True), Observed(vmm=Unknown("a reason"))):
        run.seen(held, differs, "")
        assert not run.over
    assert run.key("of another image") == RECORD.key
    run.seen(None, NOTHING, "policy.toml forbids it")
    assert run.over
    assert run.failure is not None and run.failure.message == "policy.toml forbids it"


async def test_a_signal_before_its_vm_is_up_ends_it(layout: Layout) -> None:
    inventory, woken = Inventory(layout, Store(layout)), list[str]()
    entry = inventory.entries["oak"] = Entry(Record(name="oak", spec=STOPPED))
    entry.run = run = OneRun(STOPPED)
    command = RunCommand(inventory, entry, run, ExecRequest((b"true",), {}), woken.append)
    task = asyncio.create_task(command.live())
    await asyncio.sleep(0)
    await command.kill(2)
    assert (run.over, woken) == (True, ["oak"])
    assert await command.read() == ("end", b"")
    with pytest.raises(BrokenPipeError):
        await command.write(b"x")
    run.seen(None, NOTHING, "")
    assert (await command.wait()).shell_status == 130
    await task


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


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [("max_ram_mib = 256\n", True), ("max_ram_mib = 200\n", False), ("garbled [", True)],
)
@pytest.mark.parametrize("text", ["as it began", "another", "refused"])
def test_a_policy_that_became_stricter_ends_it(
    layout: Layout, policy: str, allowed: bool, text: str
) -> None:
    """By its own spec, with which it began, whatever its Boxfile says by now."""
    inventory = Inventory(layout, Store(layout))
    path = layout.boxes / "oak.box.yaml"
    path.write_text("name: oak\nstate: stopped\nram_mib: 256\n")
    inventory.refresh()
    entry = inventory.entries["oak"]
    assert entry.record.spec is not None
    run = OneRun(entry.record.spec)
    inventory.begin_run(entry, run)
    assert "oak" not in inventory.refresh() and not run.over
    if text == "another":
        path.write_text("name: oak\nstate: stopped\nram_mib: 128\n")
    elif text == "refused":
        path.write_text("name: oak\nram_mib: 100000\n")
    layout.policy.write_text(policy)
    changed = inventory.refresh()
    assert run.over is not allowed
    if not allowed:
        assert "oak" in changed, "its pass comes at once"
        assert isinstance(run.failure, RefusedByPolicy) and run.failure.fix
        assert "max_ram_mib" in run.failure.message
        run.end(HostError("another reason"))
        assert isinstance(run.failure, RefusedByPolicy)


def test_a_sum_that_became_smaller_ends_it_too(layout: Layout) -> None:
    """A stopped Boxfile counts for no sum, the VM of its run does."""
    inventory = Inventory(layout, Store(layout))
    text = "name: oak\nstate: stopped\nram_mib: 256\n"
    (layout.boxes / "oak.box.yaml").write_text(text)
    inventory.refresh()
    entry = inventory.entries["oak"]
    assert entry.record.spec is not None
    run = OneRun(entry.record.spec)
    inventory.begin_run(entry, run)
    layout.policy.write_text("max_total_ram_mib = 200\n")
    inventory.refresh()
    assert run.failure is not None and "max_total_ram_mib" in run.failure.message
    assert not entry.over_ceiling
