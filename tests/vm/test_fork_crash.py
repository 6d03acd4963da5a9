"""kill -9 at random moments of fork and apply: the old or the new, nothing between or left.

What happens in the disks' folders is tried without machines, too, more often and at more moments:
tests/unit/reconcilers/test_disks_killed.py, tests/unit/guestfiles/test_views.py.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter

import pytest

from reconcilers import layers
from reconcilers.chain import Layer
from tests.moments import Moments
from tests.vm.harness import READY, TINY, Home, until
from tests.vm.strays import no_strays
from tests.vm.test_fork_changes import chain_of, contents, stop
from tests.vm.test_snapshots import written_on
from tests.vm.test_transfer import is_clean
from tests.vm.test_transfer_crash import cleared, exported, interrupted, tree_of

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
    home.box("fork", "oak", "try", "--wait", timeout=3 * READY)
    stop(home, "try")
    moments = Moments(chance, rounds, home.path / "disks", home.path / "transfers", home.runtime)
    home.box("data", "import", "try", str(tree_of(folder, 1)))
    with moments.learned():
        home.box("fork", "apply", "try")
    version = number = 1
    seen: Counter[str] = Counter()
    for each in range(rounds):
        if version == number:  # else it has yet to be applied
            number += 1
            home.box("data", "import", "try", str(tree_of(folder, number)))
        before = chain_of(home, "oak"), contents(home, "oak")
        controller = chance.random() < 0.7
        with moments.one() as moment:
            when, ended = interrupted(
                home, "fork", "apply", "try", moment=moment, controller=controller
            )
        told = f"seed {SEED} + {part}, round {each}, {controller=}, {when}"
        cleared(home)
        found = version
        if (chain_of(home, "oak"), contents(home, "oak")) != before:
            found = exported(home, folder, each)
            assert found == number, f"{told}: {found}"
        outcome = ("new" if found == number else "old") + ", ended" * ended
        print(f"{told}: {outcome}")
        seen[outcome] += 1
        version = found
        for name in ("oak", "try"):
            chain_of(home, name)
        if len(chain_of(home, "oak").layers) > 20 or len(chain_of(home, "try").layers) > 20:
            home.box("fork", "discard", "try")
            home.nothing_left("try")
            home.box("reset", "oak", "--discard")
            home.box("data", "import", "oak", str(tree_of(folder, version)))
            home.box("fork", "oak", "try", "--wait", timeout=3 * READY)
            stop(home, "try")
    print(dict(seen))
    assert rounds < 10 or "old" in seen, "killed before the end"
    # No conflict: whether it was applied or not, the fork is compared with what is so.
    home.box("fork", "apply", "try")
    assert exported(home, folder, rounds) == number


def forks(home: Home, rounds: int, part: int) -> None:
    chance = random.Random(SEED + part)
    parent_of_version_0(home)
    before = chain_of(home, "oak").layers
    # Most in what is done to the disks, which takes some milliseconds of all the time.
    moments = Moments(chance, rounds, home.path / "disks", clock=0.3)
    with moments.learned():
        home.put("first", f"{TINY}fork_of: oak\n")
        until((home.path / "disks" / "first" / layers.CHAIN).exists, READY, "it is there")
    home.box("delete", "first")
    home.nothing_left("first")
    seen: Counter[str] = Counter()
    for number in range(rounds):
        name = f"try{number}"
        folder, parent = home.path / "disks" / name, chain_of(home, "oak")
        written_on(home.path / "disks" / "oak", parent)  # else it can be branched as it is
        with moments.one() as moment:
            home.put(name, f"{TINY}fork_of: oak\n")
            when = moment()
            home.stop(signal.SIGKILL)
        told = f"seed {SEED} + {part}, round {number}, {when}"
        assert not folder.exists() or chain_of(home, name).origin is not None, told
        outcome = "forked" if folder.exists() else "not yet"
        outcome += ", parent has another top" * (len(layers_of(home, "oak")) > len(parent.layers))
        print(f"{told}: {outcome}")
        seen[outcome] += 1
        home.start()
        until((folder / layers.CHAIN).exists, READY, f"it is there; {home.log()}")
        shared = chain_of(home, name).layers[:-1]
        assert shared == chain_of(home, "oak").layers[: len(shared)], told
        for layer in shared:
            assert (folder / layer.file).samefile(home.path / "disks" / "oak" / layer.file), told
        if number % 5 == 0:
            home.ready(name)
            assert home.run(name, "sh", "-c", "cat /data/d*/file1").stdout == b"0\n" * 51, told
        assert chain_of(home, "oak").layers[: len(before)] == before
        left = [path.name for path in (home.path / "disks").iterdir() if path.name[0] == "."]
        assert left in ([], [".deleted"])
        home.box("delete", name)
        home.nothing_left(name)
        no_strays(home)
    print(dict(seen))
    assert len(seen) > 1, "killed before it was forked, and afterwards"


def layers_of(home: Home, name: str) -> tuple[Layer, ...]:
    """Whatever else lies beside them."""
    found = layers.read(home.path / "disks" / name)
    assert found is not None
    return found[0].layers


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
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("part", [1, 2])
def test_many_forks_that_are_killed(home: Home, part: int) -> None:
    forks(home, 15, part)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_without_room_in_the_parent_it_stays_as_it_was(home: Home) -> None:
    folder = home.path.parent / "own"
    parent_of_version_0(home)
    home.box("fork", "oak", "try", "--wait", timeout=3 * READY)
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
