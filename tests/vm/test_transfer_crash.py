"""kill -9 at seeded moments of imports and exports: the old or the new, nothing between or left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.vm.harness import BOX, ROOT, SLOWNESS, TINY, Home, until
from tests.vm.test_transfer import is_clean

ALL = os.environ.get("BOX_TEST_ALL") == "1"
# In parts, each with a home of its own: all in a row would be one test of a quarter of an hour.
PARTS = range(8) if ALL else range(1)
ROUNDS = 8 if ALL else 4  # every other one an import, the others exports
FILES = 60

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(1200 if ALL else 500)]


def tree_of(folder: Path, version: int) -> Path:
    """Always the same names, with a content by which each file tells its version."""
    tree = folder / f"version{version}"
    for number in range(FILES):
        path = tree / f"d{number % 7}" / f"file{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{version}\n" * (1 + number * 50))
    return tree


def version_of(tree: Path) -> int:
    """The version of all its files, which must be one and the same."""
    found = [path for path in tree.rglob("*") if path.is_file()]
    assert len(found) == FILES
    versions = set()
    for path in found:
        lines = path.read_text().splitlines()
        assert len(lines) == 1 + int(path.name.removeprefix("file")) * 50
        versions.update(lines)
    assert len(versions) == 1, versions
    return int(versions.pop())


def exported(home: Home, folder: Path, number: int) -> int:
    target = folder / f"check{number}"
    home.box("data", "export", "oak", str(target))
    assert not [name for name in os.listdir(folder) if name.startswith(".box-export-")]
    return version_of(target)


def interrupted(home: Home, *arguments: str, after: float, controller: bool) -> None:
    """Start a command of box, and kill it or its controller after a while."""
    with subprocess.Popen(
        [*BOX, *arguments], env=home.env, cwd=ROOT, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        time.sleep(after)
        if controller:
            home.stop(signal.SIGKILL)
            process.wait(60)
            home.start()
        else:
            process.kill()


@pytest.mark.parametrize("part", PARTS)
def test_killed_at_any_moment_it_is_the_old_or_the_new(home: Home, part: int) -> None:
    seed = int(os.environ.get("BOX_TEST_SEED", "20261130")) + part
    chance = random.Random(seed)
    folder = home.path.parent / "own"
    folder.mkdir()
    home.put("oak", TINY + "state: stopped\n")
    until(lambda: home.condition("oak", "Ready")[1] == "Stopped", 60, "known")
    version = 0
    home.box("data", "import", "oak", str(tree_of(folder, version)))
    for number in range(ROUNDS):
        importing = number % 2 == 0
        after, controller = chance.uniform(0.1, 6.0) * SLOWNESS, chance.random() < 0.5
        told = f"seed {seed}, round {number}: {importing=} {after=:.2f} {controller=}"
        if importing:
            given = tree_of(folder, version + 1)
            interrupted(
                home, "data", "import", "oak", str(given), after=after, controller=controller
            )
        else:
            target = folder / f"out{number}"
            interrupted(
                home, "data", "export", "oak", str(target), after=after, controller=controller
            )
            assert not target.exists() or version_of(target) == version, told
        home.look_again()
        is_clean(home)
        found = exported(home, folder, number)
        assert found == version or (importing and found == version + 1), f"{told}: {found}"
        print(f"{told}: {'new' if found > version else 'old'}")
        version = found
    is_clean(home)
