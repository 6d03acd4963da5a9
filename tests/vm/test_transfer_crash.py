"""kill -9 at random moments of imports and exports: the old or the new, nothing between or left."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.moments import Moments
from tests.vm.harness import PATIENCE, TINY, Home, until
from tests.vm.strays import no_strays
from tests.vm.test_transfer import is_clean

SEED = int(os.environ.get("BOX_TEST_SEED", "20261130"))
FILES = 60

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(600)]


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


def interrupted(
    home: Home, *arguments: str, moment: Callable[[], str], controller: bool
) -> tuple[str, bool]:
    """Start a command of box, and kill it or its controller at that moment; which one that was, and
    whether the command had ended before.
    """
    with home.asking(*arguments) as process:
        when = moment()
        ended = process.poll() is not None
        if controller:
            home.stop(signal.SIGKILL)
            process.wait(60 * PATIENCE)
            home.start()
        else:
            process.kill()
    return when, ended


def cleared(home: Home) -> None:
    """Nothing is left. What belongs to a command that was killed goes with the first scan after the
    end of what it began, and they come every 30 s by themselves.
    """

    def swept() -> bool:
        home.look_again()
        time.sleep(0.5)
        return not list((home.path / "transfers").glob("*"))

    until(swept, 60, "no archive is left")
    is_clean(home)
    no_strays(home)


# In parts, each with a home of its own: all in a row would be one test of a quarter of an hour.
@pytest.mark.parametrize(
    ("part", "rounds"),
    [(0, 4), *(pytest.param(part, 12, marks=pytest.mark.long) for part in range(1, 6))],
)
def test_killed_at_any_moment_it_is_the_old_or_the_new(home: Home, part: int, rounds: int) -> None:
    """Every other round is an import, the others are exports."""
    chance = random.Random(SEED + part)
    folder = home.path.parent / "own"
    folder.mkdir()
    home.put("oak", TINY + "state: stopped\n")
    until(lambda: home.condition("oak", "Ready")[1] == "Stopped", 60, "known")
    version = 0
    places = (home.path / "disks", home.path / "transfers", home.runtime)
    # What an import puts in force it does within its guest, where only the clock finds it.
    imports = Moments(chance, rounds // 2, *places, clock=0.7)
    exports = Moments(chance, rounds // 2, *places, folder, clock=0.5)
    with imports.learned():
        home.box("data", "import", "oak", str(tree_of(folder, version)))
    with exports.learned():
        assert exported(home, folder, rounds) == version
    seen: Counter[str] = Counter()
    for number in range(rounds):
        importing, controller = number % 2 == 0, chance.random() < 0.5
        given, target = tree_of(folder, version + 1), folder / f"out{number}"
        verb, path = ("import", given) if importing else ("export", target)
        with (imports if importing else exports).one() as moment:
            when, ended = interrupted(
                home, "data", verb, "oak", str(path), moment=moment, controller=controller
            )
        told = f"seed {SEED} + {part}, round {number}, {verb}, {controller=}, {when}"
        assert importing or not target.exists() or version_of(target) == version, told
        there = target.exists()
        cleared(home)
        # An export that was killed changed nothing, which the next import shows as well.
        found = exported(home, folder, number) if importing else version
        assert found == version or (importing and found == version + 1), f"{told}: {found}"
        outcome = f"{verb}: {'new' if found > version or there else 'old'}" + ", ended" * ended
        print(f"{told}: {outcome}")
        seen[outcome] += 1
        version = found
    assert exported(home, folder, rounds + 1) == version
    is_clean(home)
    print(dict(seen))
    assert rounds < 12 or {"import: old", "export: old"} <= seen.keys(), "killed before the end"
