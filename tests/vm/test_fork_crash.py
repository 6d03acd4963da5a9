"""kill -9 at seeded moments of fork and apply: the old or the new, nothing between or left.

What happens in the disks' folders is tried without machines, too, more often and at more moments:
tests/unit/reconcilers/test_disks_killed.py, tests/unit/guestfiles/test_views.py.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.vm.harness import READY, SLOWNESS, TINY, Home, until
from tests.vm.test_fork_changes import chain_of, stop
from tests.vm.test_transfer import is_clean
from tests.vm.test_transfer_crash import exported, interrupted, tree_of

pytestmark = [pytest.mark.needs_root]
SEED = int(os.environ.get("BOX_TEST_SEED", "20261130"))
STOPPED = TINY + "state: stopped\n"


def parent_of_version_0(home: Home) -> None:
    folder = home.path.parent / "own"
    folder.mkdir()
    home.put("oak", STOPPED)
    until(lambda: home.condition("oak", "Ready")[1] == "Stopped", 60, "known")
    home.box("data", "import", "oak", str(tree_of(folder, 0)))


def applies(home: Home, rounds: int, part: int = 0) -> None:
    chance = random.Random(SEED + part)
    folder = home.path.parent / "own"
    parent_of_version_0(home)
    home.box("fork", "oak", "try", "--wait", timeout=READY)
    stop(home, "try")
    version = 0
    for number in range(rounds):
        home.box("data", "import", "try", str(tree_of(folder, number + 1)))
        after, controller = chance.uniform(0.2, 9.0) * SLOWNESS, chance.random() < 0.7
        told = f"seed {SEED} + {part}, round {number}: {after=:.2f} {controller=}"
        interrupted(home, "fork", "apply", "try", after=after, controller=controller)
        home.look_again()
        is_clean(home)
        found = exported(home, folder, number)
        assert found in (version, number + 1), f"{told}: {found}"
        version = found
        for name in ("oak", "try"):
            chain_of(home, name)
        if len(chain_of(home, "oak").layers) > 20 or len(chain_of(home, "try").layers) > 20:
            home.box("fork", "discard", "try")
            home.nothing_left("try")
            home.box("reset", "oak", "--discard")
            home.box("data", "import", "oak", str(tree_of(folder, version)))
            home.box("fork", "oak", "try", "--wait", timeout=READY)
            stop(home, "try")
    # No conflict: whether it was applied or not, the fork is compared with what is so.
    home.box("fork", "apply", "try")
    assert exported(home, folder, rounds) == rounds


def forks(home: Home, rounds: int) -> None:
    chance = random.Random(SEED)
    parent_of_version_0(home)
    before = chain_of(home, "oak").layers
    for number in range(rounds):
        name, after = f"try{number}", chance.uniform(0.0, 1.5) * SLOWNESS
        told = f"seed {SEED}, round {number}: {after=:.2f}"
        home.put(name, f"{TINY}fork_of: oak\n")
        time.sleep(after)
        home.stop(signal.SIGKILL)
        folder = home.path / "disks" / name
        assert not folder.exists() or chain_of(home, name).origin is not None, told
        home.start()
        home.ready(name)
        assert home.run(name, "sh", "-c", "cat /data/d*/file1").stdout == b"0\n" * 51, told
        assert chain_of(home, "oak").layers[: len(before)] == before
        left = [path.name for path in (home.path / "disks").iterdir() if path.name[0] == "."]
        assert left in ([], [".deleted"])
        home.box("delete", name)
        home.nothing_left(name)


@pytest.mark.timeout(500)
def test_an_apply_that_is_killed_is_the_old_or_the_new(home: Home) -> None:
    applies(home, 3)


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("part", [1, 2, 3])
def test_many_applies_that_are_killed(home: Home, part: int) -> None:
    """In parts, each with a home of its own: all in a row would be one test of ten minutes."""
    applies(home, 10, part)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_many_forks_that_are_killed(home: Home) -> None:
    forks(home, 30)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_without_room_in_the_parent_it_stays_as_it_was(home: Home) -> None:
    folder = home.path.parent / "own"
    parent_of_version_0(home)
    home.box("fork", "oak", "try", "--wait", timeout=READY)
    stop(home, "try")
    for name, size in (("try", 16), ("oak", 12)):
        more = folder / f"more-{name}"
        more.mkdir()
        (more / name).write_bytes(os.urandom(size << 20))
        home.box("data", "import", name, str(more))
    before = [chain_of(home, name) for name in ("oak", "try")]
    full = home.box("fork", "apply", "try", check=False)
    assert full.returncode == 1 and b"No space left" in full.stderr
    assert [chain_of(home, name) for name in ("oak", "try")] == before
    is_clean(home)
