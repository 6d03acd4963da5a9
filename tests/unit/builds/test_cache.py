"""The disks that finished steps leave: whole or not at all, each for itself."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from reconcilers import disk as disks
from reconcilers.builds.cache import RECENT_SECONDS, Cache
from reconcilers.builds.cache import kept as kept_names
from reconcilers.builds.recipes import Stage
from specs.errors import HostError

KEYS = tuple(f"{number}" * 64 for number in range(1, 4))
STAGES = tuple(Stage(key, ()) for key in KEYS)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "builds", 64)


def kept(cache: Cache, former: str, key: str, content: bytes = b"") -> None:
    """A step that writes `content` into its layer, as a VMM would, was run."""
    working = cache.fresh()
    disk = cache.begin(former, working)
    with open(disk.path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(content)
    cache.keep(working, key)
    cache.drop(working)


def names(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "builds"))


def test_a_build_goes_on_after_the_last_step_that_is_there(cache: Cache, tmp_path: Path) -> None:
    assert cache.done(STAGES)[0] == 0
    kept(cache, "", KEYS[0])
    assert cache.done(STAGES)[0] == 1
    kept(cache, KEYS[0], KEYS[1])
    assert cache.done(STAGES)[0] == 2 and cache.done(STAGES[:1])[0] == 1
    disk = cache.begin(KEYS[1], working := cache.fresh())
    assert disk.formats == ("raw", "qcow2", "qcow2", "qcow2")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (*disk.beneath, disk.path)]
    assert modes == [0o400, 0o400, 0o400, 0o600]
    cache.drop(working)
    assert not working.exists() and cache.done(STAGES)[0] == 2


def test_what_ran_without_a_network_serves_nobody_who_has_one(cache: Cache) -> None:
    kept(cache, "", STAGES[0].key)
    kept(cache, STAGES[0].key, STAGES[1].alone)
    assert cache.done(STAGES) == (1, KEYS[0])
    assert cache.done(STAGES, network=False) == (2, STAGES[1].alone)
    # What had one is as good without: nothing is reached any more.
    kept(cache, STAGES[0].key, STAGES[1].key)
    assert cache.done(STAGES, network=False) == cache.done(STAGES) == (2, KEYS[1])


def test_a_disk_that_somebody_took_away_is_named_with_the_fix(cache: Cache) -> None:
    cache.begin("", working := cache.fresh())
    shutil.rmtree(working)
    with pytest.raises(HostError, match="is gone") as caught:
        cache.keep(working, KEYS[0])
    assert caught.value.fix
    with pytest.raises(HostError, match="is gone") as caught:
        cache.begin(KEYS[1], cache.fresh())
    assert caught.value.fix


def test_each_disk_is_whole_without_those_it_was_made_from(cache: Cache, tmp_path: Path) -> None:
    kept(cache, "", KEYS[0])
    kept(cache, KEYS[0], KEYS[1])
    for name in names(tmp_path):
        if not name.startswith(KEYS[1][:40]):
            shutil.rmtree(tmp_path / "builds" / name)
    assert cache.done(STAGES)[0] == 2
    kept(cache, KEYS[1], KEYS[2])
    assert cache.done(STAGES)[0] == 3


def test_what_was_made_first_stays_and_one_with_a_hole_is_none(
    cache: Cache, tmp_path: Path
) -> None:
    kept(cache, "", KEYS[0], b"first")
    kept(cache, "", KEYS[0], b"second")
    disk = disks.observe(tmp_path / "builds" / KEYS[0][:40])
    assert disk is not None and disk.path.read_bytes().endswith(b"first")
    assert names(tmp_path) == [KEYS[0][:40], "empty-64"]
    disk.path.unlink()
    assert cache.done(STAGES)[0] == 0


@pytest.mark.parametrize("what", ["a layer", "the chain", "all", "half of it"])
def test_what_is_broken_is_made_again(cache: Cache, tmp_path: Path, what: str) -> None:
    """As `rm -r builds/*` leaves it when it is stopped, or comes while a step runs."""
    kept(cache, "", KEYS[0])
    for name in names(tmp_path):
        folder = tmp_path / "builds" / name
        files = sorted(folder.iterdir())
        match what:
            case "a layer":
                files[-2 if len(files) > 2 else 0].unlink()
            case "the chain":
                (folder / "chain.toml").unlink()
                (folder / f"{'0' * 16}.qcow2").touch()  # else it is known what it was
            case "all":
                for path in files:
                    path.unlink()
            case _:
                files[-1].write_bytes(b"")
    kept(cache, "", KEYS[0], b"again")
    kept(cache, KEYS[0], KEYS[1])
    assert cache.done(STAGES)[0] == 2
    assert names(tmp_path) == [KEYS[0][:40], KEYS[1][:40], "empty-64"]


def test_what_is_no_disk_stops_no_build_at_its_end(cache: Cache, tmp_path: Path) -> None:
    kept(cache, "", KEYS[0])
    (tmp_path / "builds" / ("a" * 40)).touch()
    (tmp_path / "builds" / ("b" * 40)).symlink_to("loop")
    cache.trim(0)
    assert cache.done(STAGES)[0] == 1


def test_what_steps_did_not_leave_is_never_removed(cache: Cache, tmp_path: Path) -> None:
    """Whoever has little room may let `builds` lead to a folder on another disk."""
    (tmp_path / "elsewhere/photos").mkdir(parents=True)
    (tmp_path / "elsewhere/photos/one").write_bytes(b"x" * 100_000)
    (tmp_path / "builds").symlink_to("elsewhere")
    kept(cache, "", KEYS[0])
    for name in ("photos", KEYS[0][:40]):
        os.utime(tmp_path / "elsewhere" / name, (7, 7))
    assert [name for name, _ in kept_names(tmp_path / "builds")] == [KEYS[0][:40]]
    cache.trim(0)
    assert names(tmp_path) == ["empty-64", "photos"]
    assert (tmp_path / "elsewhere/photos/one").exists()


def test_a_killed_build_leaves_what_the_next_start_removes(cache: Cache, tmp_path: Path) -> None:
    kept(cache, "", KEYS[0])
    cache.begin(KEYS[0], cache.fresh())
    (tmp_path / "builds/.new-abc").mkdir()
    cache.sweep()
    assert names(tmp_path) == [KEYS[0][:40], "empty-64"]


def test_those_used_least_recently_go_first_and_recent_ones_stay(
    cache: Cache, tmp_path: Path
) -> None:
    for key in KEYS:
        kept(cache, "", key, os.urandom(1 << 20))
    cache.trim(0)
    assert len(names(tmp_path)) == 4, "a build may be about to go on from them"
    for age, key in enumerate(KEYS):
        path = tmp_path / "builds" / key[:40]
        moment = path.stat().st_mtime - RECENT_SECONDS - 100 * (3 - age)
        os.utime(path, (moment, moment))
    assert cache.done(STAGES[:1])[0] == 1  # which uses it
    cache.trim(9 << 20)
    assert len(names(tmp_path)) == 4
    cache.trim(2 << 20)
    assert KEYS[0][:40] in names(tmp_path) and KEYS[1][:40] not in names(tmp_path)
