"""Layers that become one by a confined VMM without a guest, and what may interrupt that."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from reconcilers import disk as disks
from reconcilers import snapshots
from reconcilers.chain import LAYERS_MAX, Chain, Layer
from tests.vm import blocks
from tests.vm.harness import PATIENCE, TINY, Home, until
from tests.vm.people import person, persons_home
from tests.vm.test_snapshots import chain_of
from tests.vm.test_transfer import is_clean

ALL = os.environ.get("BOX_TEST_ALL") == "1"
KILLS = 30 if ALL else 4
SIZE_MIB = 32
# MiB to mark, as the guest of each snapshot would find them; 20 is written again and again
ONE = {5: 0, 10: 1, 20: 1}
TWO = {10: 1, 20: 2, 11: 2, 12: 0}
THREE = {10: 1, 20: 3, 11: 2, 12: 3, 13: 0}
NOW = {10: 1, 20: 3, 11: 2, 12: 3, 13: 4}

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(1800 if ALL else 300)]


def filled(home: Home, owner: int) -> Path:
    """A stopped sandbox `oak` with the snapshots one, two and three, and something written since.
    No VM of it ever ran.
    """
    home.put("oak", TINY + "state: stopped\n")
    until(lambda: home.condition("oak", "Ready")[1] == "Stopped", 60, "known")
    folder = home.path / "disks" / "oak"
    disks.create(folder, SIZE_MIB)
    for path in (folder, *folder.iterdir()):
        os.chown(path, owner, owner)
    writes = ((10, 1, "one"), (11, 2, "two"), (12, 3, "three"), (13, 4, ""))
    for at, mark, label in writes:
        blocks.write(folder, mark, at)
        if mark < 4:
            blocks.write(folder, mark, 20)
            home.box("snapshot", "oak", label)
    return folder


def view(found: Chain, label: str) -> tuple[Layer, ...]:
    return found.snapshot(label).layers if label else found.layers


def check(folder: Path, found: Chain, **wanted: dict[int, int]) -> None:
    """What each of these snapshots holds, and `now` the disk itself."""
    for label, marks in wanted.items():
        seen = blocks.marks(folder, view(found, "" if label == "now" else label), marks)
        assert all(seen.values()), (label, seen)


def labels(home: Home) -> list[str]:
    said = json.loads(home.box("snapshots", "oak", "-o", "json").stdout)
    return [each["label"] for each in said["snapshots"]]


def story(home: Home, owner: int) -> None:
    folder = filled(home, owner)
    before = chain_of(home)
    assert len(before.layers) == 4
    check(folder, before, one=ONE, two=TWO, three=THREE, now=NOW)
    said = home.box("snapshots", "oak", "--delete", "two").stdout.decode()
    assert said == "oak: snapshot two deleted; 1 layer merged into those beneath\n"
    found = chain_of(home)
    assert [layer.file for layer in found.layers] == [
        before.layers[0].file, before.layers[1].file, before.layers[3].file,
    ]  # fmt: skip
    check(folder, found, one=ONE, three=THREE, now=NOW)
    is_clean(home)
    # Into the lowest, which is raw.
    said = home.box("snapshots", "oak", "--delete", "one").stdout.decode()
    assert "1 layer merged" in said
    found = chain_of(home)
    assert [layer.format for layer in found.layers] == ["raw", "qcow2"]
    check(folder, found, three=THREE, now=NOW)
    assert {path.stat().st_uid for path in folder.iterdir()} == {owner}
    is_clean(home)


def test_what_no_snapshot_needs_becomes_one_layer(home: Home) -> None:
    story(home, 0)


def test_so_it_does_for_an_ordinary_user() -> None:
    with person() as someone, persons_home(someone) as home:
        home.start()
        story(home, someone.uid)


def test_killed_at_any_moment_everybody_sees_what_was_there(home: Home) -> None:
    """The controller, or the VMM that merges."""
    seed = int(os.environ.get("BOX_TEST_SEED", "20261130"))
    chance = random.Random(seed)
    folder = filled(home, 0)
    outcomes = {"merged": 0, "not merged": 0, "not deleted": 0}
    for number in range(KILLS):
        label = f"s{number}"
        former, latest = (99 + number if number else 0), 100 + number
        blocks.write(folder, latest, 25)
        home.box("snapshot", "oak", label)
        blocks.write(folder, latest, 26)
        before = chain_of(home)
        ends_vmm = chance.random() < 0.4
        where = f"seed {seed}, round {number}, {ends_vmm=}"
        asking = home.asking("snapshots", "oak", "--delete", label)
        if ends_vmm:
            until(lambda each=asking: home.helper_vmms() or each.poll() is not None, 60, where)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.15))
            for pid in home.helper_vmms():
                with contextlib.suppress(ProcessLookupError):  # it was done
                    os.kill(pid, signal.SIGKILL)
        else:
            time.sleep(chance.uniform(0.1, 0.8))
            home.stop(signal.SIGKILL)
            home.start()
        asking.wait(60 * PATIENCE)
        is_clean(home)
        found = chain_of(home)
        check(folder, found, one=ONE, two=TWO, three=THREE, now={**NOW, 25: latest, 26: latest})
        gone = label not in labels(home)
        if not gone:
            check(folder, found, **{label: {**NOW, 25: latest, 26: former}})
        merged = len(found.layers) < len(before.layers)
        outcomes["merged" if merged else "not merged" if gone else "not deleted"] += 1
        # what was left is done with the next one
        home.box("snapshot", "oak", "x")
        home.box("snapshots", "oak", "--delete", "x")
        if not gone:
            home.box("snapshots", "oak", "--delete", label)
        assert len(chain_of(home).layers) <= 6, where
    print(outcomes)
    check(folder, chain_of(home), one=ONE, two=TWO, three=THREE, now=NOW)


def test_a_chain_that_is_full_makes_room_by_itself(home: Home) -> None:
    folder = filled(home, 0)
    while len(chain_of(home).layers) < LAYERS_MAX:
        with open(folder / chain_of(home).top.file, "ab") as top:
            top.write(bytes(1 << 16))  # no cluster, which is as much as nothing
        label = snapshots.take(folder, "", snapshots.now())
        snapshots.forget(folder, label)
    home.box("snapshot", "oak", "last")
    found = chain_of(home)
    assert [each.label for each in found.snapshots] == ["one", "two", "three", "last"]
    assert len(found.layers) == 5
    check(folder, found, one=ONE, two=TWO, three=THREE, last=NOW, now=NOW)
    is_clean(home)


def test_a_host_whose_disk_is_full_merges_later(small_home: Home) -> None:
    home = small_home
    folder = filled(home, 0)
    before = chain_of(home)
    facts = os.statvfs(home.path)
    with open(home.path / "ballast", "wb") as file:
        room = facts.f_bavail * facts.f_frsize - (48 << 10)  # less than the 64 KiB of one mark
        os.posix_fallocate(file.fileno(), 0, room)
    said = home.box("snapshots", "oak", "--delete", "one").stdout
    assert said == b"oak: snapshot one deleted\n"
    found = chain_of(home)
    assert found.layers == before.layers
    is_clean(home)
    (home.path / "ballast").unlink()
    check(folder, found, two=TWO, three=THREE, now=NOW)
    said = home.box("snapshots", "oak", "--delete", "two").stdout
    assert said == b"oak: snapshot two deleted; 2 layers merged into those beneath\n"
    check(folder, chain_of(home), three=THREE, now=NOW)


def test_a_layer_that_a_fork_has_too_stays_as_it_is(home: Home) -> None:
    folder = filled(home, 0)
    fork = folder.with_name("elm")
    snapshots.fork(folder, fork, SIZE_MIB, snapshots.now())
    shared = {path.name: path.read_bytes() for path in fork.iterdir() if path.stat().st_nlink > 1}
    assert len(shared) == 4
    said = home.box("snapshots", "oak", "--delete", "two").stdout.decode()
    assert said == "oak: snapshot two deleted\n"
    for name, content in shared.items():
        assert (fork / name).read_bytes() == content
    check(folder, chain_of(home), one=ONE, three=THREE, now=NOW)
