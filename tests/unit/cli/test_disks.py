"""snapshot, snapshots, restore, reset and fork on the command line, without a VM."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.store import Record, Store
from reconcilers import disk, launchrecord, procfs, snapshots
from reconcilers.facts import Disk
from reconcilers.layout import Layout
from reconcilers.snapshots import Moment
from specs.parse import parse_boxfile
from tests.unit.cli.hostservice import serving
from tests.unit.cli.support import box, text
from tests.unit.programs import needs_mke2fs
from tests.unit.reconcilers.test_files import RECORD

NOW = Moment("2026-01-01T00:00:00.000Z", "2026-01-01-000000")
FERN = b"cpus: 1\nnetwork: bridge\negress: none\nlabels: {kind: plant}\ndata: {size_mib: 16}\n"


@pytest.fixture
def fern(layout: Layout) -> Iterator[Layout]:
    """A sandbox as a controller leaves it, stopped."""
    (layout.boxes / "fern.box.yaml").write_bytes(FERN)
    spec = parse_boxfile(FERN, file="fern.box.yaml", expected_name="fern").box
    Store(layout).save(Record(name="fern", spec=spec, source="fern.box.yaml"))
    disk.create(layout.disks("fern"), 16)
    yield layout
    shutil.rmtree(layout.runtime, ignore_errors=True)


@needs_mke2fs
def test_snapshots_are_listed_without_a_controller(fern: Layout) -> None:
    shown = text(box(fern.home, "snapshots", "fern"))
    assert shown == "fern has no snapshot; with its VM stopped, box snapshot fern takes one\n"
    snapshots.take(fern.disks("fern"), "first", NOW)
    snapshots.reset(fern.disks("fern"), 16, NOW, discard=True)
    head, row = text(box(fern.home, "snapshots", "fern")).splitlines()
    assert head.split() == ["LABEL", "AGE", "DISK", "FREES"]
    assert row.split()[0] == "first" and row.split()[2:4] == ["16", "MiB"]
    found = json.loads(box(fern.home, "snapshots", "fern", "-o", "json").stdout)
    assert found["snapshots"][0]["disk_bytes"] == 16 << 20
    assert found["snapshots"][0]["frees_bytes"] > 0
    assert b"there is no sandbox moss" in box(fern.home, "snapshots", "moss").stderr


async def test_the_controller_does_the_rest(layout: Layout) -> None:
    said: list[str] = []

    async def ask(*arguments: str) -> int:
        done = await asyncio.to_thread(box, layout.home, *arguments)
        said.append(text(done))
        return done.returncode

    assert await ask("snapshot", "down", "x") == 1
    assert "the controller is not running" in said[0]
    async with serving(layout.socket) as service:
        for arguments in (
            ["snapshot", "down"],
            ["snapshots", "down", "--delete", "a&b=c"],
            ["restore", "down", "first"],
            ["restore", "down", "first", "--discard"],
            ["reset", "down", "--discard"],
        ):
            assert await ask(*arguments) == 0, said[-1]
        assert await ask("reset", "agent") == 1
        assert service.disks.asked[1] == ("forget", "down", "a&b=c")
    assert said[1:] == [
        "down: snapshot 2026-01-01-000000 taken\n",
        "down: snapshot a&b=c deleted; 2 layers merged into those beneath\n",
        "down: /data is that of first again; what was there is the snapshot "
        "before-restore-2026-01-01-000000\n",
        "down: /data is that of first again; what was there is erased\n",
        "down: /data is empty; what was there is erased\n",
        "box: the VM of agent runs\n  fix: write state: stopped\n",
    ]


async def test_a_label_that_is_none_is_a_mistake_of_usage(layout: Layout) -> None:
    async with serving(layout.socket):
        done = await asyncio.to_thread(box, layout.home, "snapshot", "down", "No Label")
    assert done.returncode == 2
    assert b"a label" in done.stderr and b"fix: " in done.stderr


@needs_mke2fs
def test_fork_writes_the_boxfile_of_its_parent_with_another_name(fern: Layout) -> None:
    disk.grow(_seen(fern), 24)
    done = box(fern.home, "fork", "fern", "frond")
    assert done.stdout == b"frond created, a fork of fern\n"
    assert b"the controller is not running" in done.stderr
    written = (fern.boxes / "frond.box.yaml").read_bytes()
    made = parse_boxfile(written, file="frond.box.yaml", expected_name="frond").box
    assert made is not None
    assert (made.fork_of, made.cpus, made.egress, made.labels, made.data.size_mib) == (
        "fern", 1, "none", {"kind": "plant"}, 24,
    )  # fmt: skip
    again = box(fern.home, "fork", "fern", "frond")
    assert again.returncode == 1
    assert (fern.boxes / "frond.box.yaml").read_bytes() == written


def _seen(layout: Layout) -> Disk:
    found = disk.observe(layout.disks("fern"))
    assert found is not None
    return found


def _nothing(layout: Layout) -> None:
    pass


def _runs(layout: Layout) -> None:
    us = procfs.read_stat(os.getpid())
    assert us is not None
    path = layout.launch_record("fern")
    path.parent.mkdir(parents=True, mode=0o700)
    launchrecord.write(path, replace(RECORD, pid=os.getpid(), start_time=us.start_time))


def _no_disk(layout: Layout) -> None:
    shutil.rmtree(layout.disks("fern"))


@needs_mke2fs
@pytest.mark.parametrize(
    ("arguments", "first", "said"),
    [
        (["fern", "frond"], _runs, "has its disk open"),
        (["fern", "frond"], _no_disk, "no data disk yet"),
        (["moss", "frond"], _nothing, "there is no sandbox moss"),
        (["fern", "Frond"], _nothing, "is not a sandbox name"),
        (["diff", "fern"], _nothing, "the controller is not running"),
        (["diff", "fern", "--theirs"], _nothing, "--theirs does not belong"),
        (["apply", "fern", "--wait"], _nothing, "--wait does not belong"),
        (["apply", "fern", "--stat"], _nothing, "--stat does not belong"),
        (["fern", "frond", "--dry-run"], _nothing, "--dry-run does not belong"),
        (["apply", "Fern"], _nothing, "is not a sandbox name"),
        (["discard", "fern"], _nothing, "fern is no fork"),
        (["fern"], _nothing, "required"),
    ],
)
def test_what_cannot_be_forked_is_said(
    fern: Layout, arguments: list[str], first: Callable[[Layout], None], said: str
) -> None:
    first(fern)
    done = box(fern.home, "fork", *arguments)
    assert done.returncode in (1, 2)
    assert said in text(done)
    assert [path.name for path in Path(fern.boxes).iterdir()] == ["fern.box.yaml"]


@needs_mke2fs
async def test_discard_asks_for_a_deletion_that_erases(fern: Layout) -> None:
    snapshots.fork(fern.disks("fern"), fern.disks("agent"), 16, NOW)
    async with serving(fern.socket) as service:
        done = await asyncio.to_thread(box, fern.home, "fork", "discard", "agent")
        assert text(done) == "agent deleted; its /data is erased in 60 s. What fern has stays\n"
        assert service.deleted == [("agent", True)]
