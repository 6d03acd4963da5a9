"""What the API asks of a disk, done to real files by the parts of a real controller; no VM runs."""

from __future__ import annotations

import asyncio
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from controller.diskuse import DiskUse, forks_waiting_for
from controller.diskverbs import DiskVerbs
from controller.entry import Entry
from controller.forks import Forks
from controller.inventory import Inventory
from controller.merging import Merging
from controller.records import Record
from controller.store import Store
from controller.transfers import Transfers
from controller.workqueue import WorkQueue
from reconcilers import disk as disks
from reconcilers import launchrecord, procfs, snapshots, steps
from reconcilers.act import Actor
from reconcilers.layout import Layout
from reconcilers.live import Live
from reconcilers.mounts import Rules
from specs.boxfile import Boxfile, Data, State
from specs.errors import BoxError, HostError, NoSandbox, RefusedByPolicy, StillRunning, UsageError
from tests.unit.programs import needs_mke2fs
from tests.unit.reconcilers.hosts import host_of
from tests.unit.reconcilers.test_files import RECORD

pytestmark = needs_mke2fs


class Made:
    """A stopped sandbox `web` with a disk, and the verbs over it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.inventory = Inventory(layout, Store(layout))
        self.queue = WorkQueue()
        self.woken: list[str] = []
        self.folder = layout.disks("web")
        host = host_of(layout)
        self.host = host
        use = self.use = DiskUse(host, self.inventory, self.queue.alone, self.woken.append)
        transfers = Transfers(host, self.inventory, use)
        merging = Merging(host, self.inventory)
        forks = Forks(host, self.inventory, use, merging)
        self.verbs = DiskVerbs(layout, self.inventory, use, transfers, forks, merging)
        spec = Boxfile(name="web", state=State.stopped, data=Data(size_mib=16))
        record = Record(name="web", spec=spec, spec_digest=spec.digest(), has_disk=True)
        self.entry = self.inventory.entries["web"] = Entry(record)
        disks.create(self.folder, 16)

    def labels(self) -> list[str]:
        return [each.label for each in snapshots.listed(self.folder)]

    def kinds(self) -> list[str]:
        events = Store(self.layout).read_events("web")
        return [f"{event.kind}: {event.message}" for event in events]


@pytest.fixture
def made(layout: Layout) -> Made:
    return Made(layout)


async def test_each_verb_is_done_told_and_followed_by_a_pass(made: Made) -> None:
    assert await made.verbs.snapshot("web", "first") == "first"
    kept = await made.verbs.restore("web", "first", discard=False)
    assert made.labels() == ["first", kept]
    assert await made.verbs.restore("web", "first", discard=True) == ""
    emptied = await made.verbs.reset("web", discard=False)
    await made.verbs.forget("web", kept)
    assert [each.label for each in await made.verbs.snapshots("web")] == ["first", emptied]
    assert made.kinds() == [
        "snapshot: first taken",
        f"restored: /data is first again; what was there is the snapshot {kept}",
        "restored: /data is first again; what was there is erased",
        f"reset: /data is empty; what was there is the snapshot {emptied}",
        f"snapshot: {kept} deleted",
    ]
    assert made.woken == ["web"] * 5


async def test_a_vm_that_has_the_disk_refuses_every_verb(made: Made) -> None:
    await made.verbs.snapshot("web", "first")
    before = snapshots.read(made.folder)

    async def refused() -> None:
        for verb in (
            made.verbs.snapshot("web", "second"),
            made.verbs.restore("web", "first", discard=False),
            made.verbs.reset("web", discard=True),
            made.verbs.forget("web", "first"),
        ):
            with pytest.raises(StillRunning, match="has its disk open"):
                await verb
        assert snapshots.read(made.folder) == before

    # one that a launch record describes
    child = await asyncio.create_subprocess_exec("sleep", "60")
    found = procfs.read_stat(child.pid)
    assert found is not None
    made.layout.sandbox_runtime("web").mkdir(mode=0o700, parents=True, exist_ok=True)
    path = made.layout.launch_record("web")
    launchrecord.write(path, replace(RECORD, pid=child.pid, start_time=found.start_time))
    await refused()
    child.kill()
    await child.wait()
    # one that this controller holds still
    made.entry.live = Live(RECORD)
    await refused()
    made.entry.live = None
    await made.verbs.snapshot("web", "second")


async def test_no_pass_runs_meanwhile_and_one_that_runs_is_waited_for(made: Made) -> None:
    made.queue.add("web")
    assert await made.queue.get() == "web"
    verb = asyncio.ensure_future(made.verbs.snapshot("web", "first"))
    await asyncio.sleep(0.05)
    assert not verb.done() and made.labels() == []
    made.queue.done("web")
    assert await verb == "first"
    async with made.queue.alone("web"):
        made.queue.add("web")
        worker = asyncio.ensure_future(made.queue.get())
        await asyncio.sleep(0.05)
        assert not worker.done()
    assert await worker == "web"


async def test_whoever_asked_may_go_but_the_name_is_kept_until_it_is_done(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, real = threading.Event(), threading.Event(), snapshots.take

    def slow(*arguments: object) -> str:
        begun.set()
        go_on.wait(20)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "take", slow)
    verb = asyncio.ensure_future(made.verbs.snapshot("web", "first"))
    assert await asyncio.to_thread(begun.wait, 20)
    verb.cancel()
    made.queue.add("web")
    worker = asyncio.ensure_future(made.queue.get())
    await asyncio.sleep(0.1)
    assert not worker.done(), "a pass could start a VM on a disk that is being changed"
    go_on.set()
    assert await worker == "web"
    assert made.labels() == ["first"]
    with pytest.raises(asyncio.CancelledError):
        await verb


async def test_erasing_is_refused_where_the_ceiling_forbids_it(made: Made) -> None:
    await made.verbs.snapshot("web", "first")
    made.layout.policy.write_text("allow_erase = false\n")
    for verb in (
        made.verbs.restore("web", "first", discard=True),
        made.verbs.reset("web", discard=True),
        made.verbs.forget("web", "first"),
    ):
        with pytest.raises(RefusedByPolicy, match="--discard"):
            await verb
    assert await made.verbs.reset("web", discard=False)
    assert made.labels()[0] == "first"


async def test_what_cannot_be_done_says_why(made: Made, tmp_path: Path) -> None:
    with pytest.raises(NoSandbox):
        await made.verbs.snapshot("moss", "first")
    with pytest.raises(UsageError, match=r"no snapshot first.*\n.*none yet"):
        await made.verbs.restore("web", "first", discard=False)
    shutil.rmtree(made.folder)
    with pytest.raises(HostError, match="no data disk yet"):
        await made.verbs.snapshot("web", "first")
    made.entry.removing = True
    with pytest.raises(BoxError):
        await made.verbs.snapshot("web", "first")


def actor_of(made: Made, name: str) -> Actor:
    """As a pass over `name` makes it."""
    return Actor(
        made.host,
        name,
        Boxfile(name=name, fork_of="web", data=Data(size_mib=16)),
        None,
        None,
        lambda name, pid: None,
        lambda name: None,
        lambda: Rules(()),
        made.use.held,
    )


def fork_from(parent: str, size_mib: int = 16) -> steps.ForkDisk:
    return steps.ForkDisk("data", f"that of {parent}", "absent", parent=parent, size_mib=size_mib)


async def test_a_pass_branches_a_fork_while_it_holds_the_parent(made: Made) -> None:
    await actor_of(made, "try").act(fork_from("web"))
    disk = disks.observe(made.layout.disks("try"))
    assert disk is not None
    assert (disk.formats, disk.private) == (("raw", "qcow2"), True)
    assert made.woken == ["web"]
    made.queue.add("web")
    assert await made.queue.get() == "web", "the parent is held for ever"


async def test_what_cannot_be_branched_is_tried_again_later(made: Made) -> None:
    made.entry.live = Live(RECORD)
    with pytest.raises(StillRunning):
        await actor_of(made, "try").act(fork_from("web"))
    made.entry.live = None
    for parent, size, said in (
        ("moss", 16, "fork_of: there is no sandbox moss"),
        ("try", 16, "names itself"),
        ("web", 8, "the disk of web that it is a fork of has 16 MiB"),
    ):
        with pytest.raises(HostError, match=said) as caught:
            await actor_of(made, "try").act(fork_from(parent, size))
        assert caught.value.retry
    assert not made.layout.disks("try").exists()
    assert forks_waiting_for("web", made.inventory) == []
    waiting = Entry(Record(name="try", spec=Boxfile(name="try", fork_of="web")), attempts=1)
    made.inventory.entries["try"] = waiting
    assert forks_waiting_for("web", made.inventory) == ["try"]
