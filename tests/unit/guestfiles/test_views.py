"""Disks that a machine may look at and not change, and a fork that was applied."""

from __future__ import annotations

import fcntl
import os
import random
from pathlib import Path

import pytest

from reconcilers import chain, layers, snapshots
from reconcilers import disk as disks
from reconcilers.chain import Chain
from reconcilers.guestfiles import forks, views
from reconcilers.snapshots import Moment
from tests.unit.programs import needs_mke2fs
from tests.unit.reconcilers import test_disks_killed as killing

pytestmark = needs_mke2fs
NOW = Moment("2026-11-30T14:00:00.000Z", "2026-11-30-140000")


@pytest.fixture
def oak(tmp_path: Path) -> Path:
    made = tmp_path / "disks" / "oak"
    disks.create(made, 16)
    return made


def rebase(fork: Path) -> None:
    """As if it were applied."""
    parent = fork.with_name("oak")
    old, mark = snapshots.read(parent), layers.new_file("qcow2")
    forks._commit(parent, old, chain.marked(old, mark, old.top.file), fork, mark)


def beginning(fork: Path) -> tuple[chain.Layer, ...]:
    """What it is compared with now."""
    parent = snapshots.read(fork.with_name("oak"))
    return forks.origin_of(snapshots.read(fork)).now(parent).layers


def mark(folder: Path) -> None:
    """What a VMM would do to the top: it is another file from then on."""
    with open(folder / snapshots.read(folder).top.file, "ab") as file:
        file.write(b"written")


def test_only_a_top_that_is_thrown_away_is_opened_for_writing(oak: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "transfers"
    snapshots.take(oak, "first", NOW)
    mark(oak)
    found = snapshots.read(oak)
    before = {path.name: path.read_bytes() for path in oak.iterdir()}
    with views.thrown_away(scratch, oak, found.layers, 16) as disk:
        assert disk.formats == ("raw", "qcow2", "qcow2")
        assert disk.beneath == tuple(oak / layer.file for layer in found.layers)
        opened = disks.open_for_vmm(disk)
        modes = [fcntl.fcntl(each, fcntl.F_GETFL) & os.O_ACCMODE for each in opened]
        assert modes == [os.O_RDONLY, os.O_RDONLY, os.O_RDWR]
        for each in opened:
            os.close(each)
        assert [path.stat().st_mode & 0o777 for path in scratch.iterdir()] == [0o600]
    assert list(scratch.iterdir()) == []
    assert {path.name: path.read_bytes() for path in oak.iterdir()} == before


def test_what_a_fork_began_with_has_the_size_it_had(oak: Path) -> None:
    other = oak.with_name("try")
    snapshots.fork(oak, other, 32, NOW)
    origin = forks.origin_of(snapshots.read(other))
    assert views.size_mib(other, origin.layers) == 16
    mark(other)
    rebase(other)
    assert views.size_mib(other, beginning(other)) == 32


def test_a_fork_that_was_applied_is_compared_with_what_it_has(oak: Path) -> None:
    other = oak.with_name("try")
    snapshots.fork(oak, other, 16, NOW)
    began = forks.origin_of(snapshots.read(other)).layers
    rebase(other)
    assert beginning(other) == began  # nobody has written
    mark(other)
    top = snapshots.read(other).top
    rebase(other)
    assert beginning(other) == (*began, top) == snapshots.read(other).layers[:-1]
    assert (other / top.file).stat().st_mode & 0o777 == 0o400
    for _ in range(chain.LAYERS_MAX):
        mark(other)
        rebase(other)
    found = snapshots.read(other)
    assert len(found.layers) == chain.LAYERS_MAX
    assert beginning(other) == found.layers[:-1], "the last one that it may have"
    # What the parent does not have any more was not applied.
    snapshots.reset(oak, 16, NOW, discard=True)
    assert beginning(other) == found.layers[:-2]


def test_an_apply_that_is_killed_is_done_in_both_or_in_neither(tmp_path: Path) -> None:
    """Its last part, in which two disks change; before that, nothing of either does."""
    chance = random.Random(f"{killing.SEED} apply")
    took, outcomes = 0.0, {"old": 0, "new": 0}
    for number in range(killing.ROUNDS + 1):
        parent = killing.made(tmp_path / str(number))
        fork = parent.with_name("try")
        snapshots.fork(parent, fork, killing.SIZE_MIB, NOW)
        mark(fork)
        mark(parent)
        old, before = snapshots.read(parent), snapshots.read(fork)
        top = layers.new_file("qcow2")
        layers.make_overlay(parent / top, killing.SIZE_MIB)
        new = chain.applied(old, "before", NOW.taken, top, killing.SIZE_MIB, empty=False)

        def act(folder: Path = parent, was: Chain = old, to: Chain = new) -> None:
            forks._commit(folder, was, to, folder.with_name("try"), to.top.file)

        if number == 0:
            took = killing.duration(act)
        else:
            killing.killed(act, chance.uniform(0, took * 1.5))
        disks.sweep(parent.parent)
        now, after = killing.whole(parent), killing.whole(fork)
        assert now in (old, new)
        outcomes["new" if now == new else "old"] += 1
        begun = forks.origin_of(after).now(now).layers
        assert begun == (before.layers if now == new else forks.origin_of(before).layers)
    print(f"apply: {outcomes}")
