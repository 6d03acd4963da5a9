"""kill -9 at random moments of what is done to a disk: the old one or the new one, nothing left.

Each round is a process of its own that does one thing and is killed in the middle of it; what a
controller does when it starts then finishes the work. No machine is needed: a guest's writes are
made here.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reconcilers import disk as disks
from reconcilers import layers, snapshots
from reconcilers.chain import Chain
from reconcilers.snapshots import Moment
from tests.unit.programs import needs_mke2fs

pytestmark = needs_mke2fs
ROUNDS = 30 if os.environ.get("BOX_TEST_ALL") == "1" else 5
SIZE_MIB = 8
SEED = int(os.environ.get("BOX_TEST_SEED", "20261130"))
MOMENT = Moment("2026-11-30T12:00:00.000Z", "2026-11-30-120000")


def made(folder: Path) -> Path:
    """The disk `oak` with a snapshot, and something written since."""
    oak = folder / "disks" / "oak"
    disks.create(oak, SIZE_MIB)
    snapshots.take(oak, "first", MOMENT)
    write(oak)
    return oak


def write(oak: Path) -> None:
    """As a guest does, to the top alone."""
    with open(oak / chain_of(oak).top.file, "ab") as top:
        top.write(b"what a guest wrote")


def chain_of(oak: Path) -> Chain:
    read = layers.read(oak)
    assert read is not None and read[1]
    return read[0]


def whole(oak: Path) -> Chain:
    """The chain of a disk whose folder holds all of it and nothing else, and nothing beside it."""
    found = chain_of(oak)
    modes = {file: 0o600 if file == found.top.file else 0o400 for file in found.files}
    assert {path.name: path.stat().st_mode & 0o7777 for path in oak.iterdir()} == {
        **modes,
        layers.CHAIN: 0o600,
    }
    assert not [path for path in oak.parent.iterdir() if path.name.startswith(".")]
    return found


def killed(act: Callable[[], object], after: float) -> bool:
    """Whether a process that began with `act` was killed in it, `after` seconds later."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.write(told, b"x")
            act()
            status = 0
        os._exit(status)
    os.read(ready, 1)
    os.close(ready)
    os.close(told)
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def duration(act: Callable[[], object]) -> float:
    """Seconds that it takes in a process of its own."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return time.monotonic() - began


def contents(oak: Path, found: Chain) -> dict[str, bytes]:
    return {file: (oak / file).read_bytes() for file in found.frozen}


VERBS: dict[str, Callable[[Path], object]] = {
    "snapshot": lambda oak: snapshots.take(oak, "", MOMENT),
    "restore": lambda oak: snapshots.restore(oak, "first", MOMENT, discard=False),
    "restore --discard": lambda oak: snapshots.restore(oak, "first", MOMENT, discard=True),
    "reset": lambda oak: snapshots.reset(oak, SIZE_MIB, MOMENT, discard=False),
    "reset --discard": lambda oak: snapshots.reset(oak, SIZE_MIB, MOMENT, discard=True),
    "snapshots --delete": lambda oak: snapshots.forget(oak, "second"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_is_the_old_one_or_the_new_one(tmp_path: Path, verb: str) -> None:
    chance = random.Random(f"{SEED} {verb}")
    act = VERBS[verb]
    took, outcomes = 0.0, {"old": 0, "new": 0}
    for number in range(ROUNDS + 1):
        home = tmp_path / str(number)
        oak = made(home)
        if verb == "snapshots --delete":
            snapshots.take(oak, "second", MOMENT)
            write(oak)
        before = chain_of(oak)
        frozen = contents(oak, before)
        if number == 0:
            took = duration(lambda each=oak: act(each))  # type: ignore[misc]
            whole(oak)
            continue
        killed(lambda each=oak: act(each), chance.uniform(0, took * 1.5))  # type: ignore[misc]
        disks.sweep(oak.parent)
        after = whole(oak)
        kept = contents(oak, after)
        for file in frozen.keys() & after.frozen:
            assert kept[file] == frozen[file], f"{verb}, round {number}: {file} was frozen"
        if after == before:
            outcomes["old"] += 1
            continue
        outcomes["new"] += 1
        labels = {each.label for each in after.snapshots}
        gone = {each.label for each in before.snapshots} - labels
        assert gone == ({"second"} if verb == "snapshots --delete" else set())
        kept_now = not verb.endswith(("--discard", "--delete"))
        assert len(labels) == len(before.snapshots) + kept_now - len(gone)
        shutil.rmtree(home)
    print(f"{verb}: {outcomes}")


def test_a_fork_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} fork")
    took, outcomes = 0.0, {"none": 0, "whole": 0}
    for number in range(ROUNDS + 1):
        oak = made(tmp_path / str(number))
        content = (oak / chain_of(oak).top.file).read_bytes()
        written = chain_of(oak).top.file
        elm = oak.with_name("elm")

        def act(parent: Path = oak, fork: Path = elm) -> None:
            snapshots.fork(parent, fork, SIZE_MIB, MOMENT)

        if number == 0:
            took = duration(act)
            continue
        killed(act, chance.uniform(0, took * 1.5))
        disks.sweep(oak.parent)
        parent = whole(oak)
        assert (oak / written).read_bytes() == content, "what the guest wrote is still there"
        assert written in {layer.file for layer in parent.layers}
        if elm.exists():
            outcomes["whole"] += 1
            fork = whole(elm)
            assert fork.layers[:-1] == parent.layers[:-1]
            for layer in fork.layers[:-1]:
                assert (elm / layer.file).samefile(oak / layer.file)
        else:
            outcomes["none"] += 1
            act()  # the next pass makes it
            whole(elm)
    print(f"fork: {outcomes}")


@pytest.mark.parametrize("verb", ["discard", "delete"])
def test_a_fork_that_goes_leaves_the_parent_whole(tmp_path: Path, verb: str) -> None:
    """Erased, or set aside: one that was killed in it is there as before, or gone, never a half."""
    chance = random.Random(f"{SEED} {verb}")
    took, outcomes = 0.0, {"there": 0, "gone": 0}
    for number in range(ROUNDS + 1):
        oak = made(tmp_path / str(number))
        elm, aside = oak.with_name("elm"), oak.with_name(".deleted")
        snapshots.fork(oak, elm, SIZE_MIB, MOMENT)
        before, content = chain_of(oak), contents(oak, chain_of(oak))

        def act(fork: Path = elm, kept: Path = aside) -> None:
            if verb == "discard":
                disks.erase(fork)
            else:
                disks.set_aside(fork, kept, MOMENT.word)

        if number == 0:
            took = duration(act)
            continue
        killed(act, chance.uniform(0, took * 1.5))
        disks.sweep(oak.parent)
        found = list(aside.iterdir()) if aside.exists() else []
        for each in found:
            each.rename(elm)
        if aside.exists():
            aside.rmdir()
        assert whole(oak) == before and contents(oak, before) == content
        outcomes["there" if elm.exists() else "gone"] += 1
        if elm.exists():
            whole(elm)
        assert elm.exists() or verb == "discard"
    print(f"{verb}: {outcomes}")
