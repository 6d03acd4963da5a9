"""What is refused before a machine is started for a fork, and that nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from controller.entry import Entry
from controller.store import Record
from reconcilers import disk as disks
from reconcilers import snapshots
from reconcilers.facts import Disk
from reconcilers.guestfiles import transfers
from reconcilers.layout import Layout
from reconcilers.live import Live
from specs.boxfile import Boxfile, Data, Isolation, State
from specs.ceiling import Ceiling
from specs.errors import Conflict, NoSandbox, RefusedByPolicy, StillRunning, UsageError
from tests.unit.controller.test_disk_verbs import Made, pytestmark
from tests.unit.reconcilers.test_files import RECORD

__all__ = ["pytestmark"]


@pytest.fixture
def made(layout: Layout) -> Made:
    """`web`, its fork `try`, and `new`, a fork that never began."""
    made = Made(layout)
    for name in ("try", "new"):
        spec = Boxfile(name=name, state=State.stopped, data=Data(size_mib=16), fork_of="web")
        record = Record(name=name, spec=spec, spec_digest=spec.digest(), has_disk=name == "try")
        made.inventory.entries[name] = Entry(record)
    snapshots.fork(made.folder, layout.disks("try"), 16, snapshots.now())
    return made


@contextmanager
def transfer(layout: Layout) -> Iterator[str]:
    with transfers.new(layout.transfers) as (name, _):
        yield name


async def refused(made: Made, name: str, kind: type[Exception], match: str) -> None:
    before = {each.path: each.beneath for each in seen(made)}
    with transfer(made.layout) as given:
        if name != "try":  # it needs no parent
            with pytest.raises(kind, match=match):
                await made.verbs.fork_diff(name, given)
        for both in (False, True):
            with pytest.raises(kind, match=match):
                await made.verbs.fork_apply(name, given, theirs=both, dry_run=both)
        assert [path.name for path in made.layout.transfers.iterdir()] == [given]
    assert {each.path: each.beneath for each in seen(made)} == before


def seen(made: Made) -> list[Disk]:
    found = (disks.observe(made.layout.disks(name)) for name in ("web", "try"))
    return [each for each in found if each is not None]


async def test_what_is_no_fork_has_nothing_to_tell(made: Made) -> None:
    await refused(made, "web", UsageError, "web is no fork")
    await refused(made, "new", Conflict, "new has no /data yet")
    await refused(made, "elm", NoSandbox, "there is no sandbox elm")


async def test_a_parent_that_runs_or_is_gone_refuses_an_apply(made: Made) -> None:
    made.entry.live = Live(RECORD)
    await refused(made, "try", StillRunning, "has its disk open")
    made.entry.live = None
    del made.inventory.entries["web"]
    await refused(made, "try", NoSandbox, "web, which try is a fork of, is not there any more")


@pytest.mark.parametrize("forbidden", ["try", "web"])
async def test_no_machine_starts_as_a_boxfile_says_that_the_policy_forbids(
    made: Made, forbidden: str
) -> None:
    """It would have the isolation and the accelerator that policy.toml does not allow any more."""
    entry = made.inventory.entries[forbidden]
    assert entry.record.spec is not None
    spec = entry.record.spec.model_copy(update={"isolation": Isolation.standard})
    entry.record = replace(entry.record, spec=spec)
    made.inventory.ceiling = Ceiling(isolation=Isolation.strict)
    why = f"as the Boxfile of {forbidden} says: isolation: at least strict"
    with transfer(made.layout) as given:
        with pytest.raises(RefusedByPolicy, match=why):
            await made.verbs.fork_apply("try", given, theirs=False, dry_run=False)
        for action in ("export", "import"):
            with pytest.raises(RefusedByPolicy, match=why):
                await made.verbs.transfer(forbidden, action, given)
        if forbidden == "try":
            with pytest.raises(RefusedByPolicy, match=why):
                await made.verbs.fork_diff("try", given)
    assert list(made.layout.transfers.iterdir()) == []


async def test_a_fork_that_runs_is_not_compared(made: Made) -> None:
    made.inventory.entries["try"].live = Live(RECORD)
    with (
        transfer(made.layout) as given,
        pytest.raises(StillRunning, match="has its disk open"),
    ):
        await made.verbs.fork_diff("try", given)


@pytest.mark.parametrize("name", ["", "../x", "0123456789abcdef", "A" * 16])
async def test_only_a_transfer_that_somebody_began_is_written(made: Made, name: str) -> None:
    with pytest.raises(UsageError, match="transfer"):
        await made.verbs.fork_diff("try", name)
