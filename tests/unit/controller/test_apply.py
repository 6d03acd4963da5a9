"""Writing Boxfiles into a folder: outcomes, conditions, refusals, disks that are full."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import files
from controller.apply import ABSENT, apply_text, delete_file, digest_of, find_source
from controller.sources.folder import BOXFILE_MAX
from specs.errors import BadName, Conflict, HostError, UsageError

REPOSITORY = Path(__file__).resolve().parents[3]
ONE = b"cpus: 1\n"
TWO = b"cpus: 2\n"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# -- outcomes -------------------------------------------------------------------------------------


def test_created_then_unchanged_then_configured(boxes: Path) -> None:
    assert apply_text(boxes, "teal", ONE, if_match=None) == "created"
    path = boxes / "teal.box.yaml"
    assert path.read_bytes() == ONE and stat.S_IMODE(path.stat().st_mode) == 0o600
    before = files.path_key(path)
    assert apply_text(boxes, "teal", ONE, if_match=None) == "unchanged"
    assert files.path_key(path) == before
    assert apply_text(boxes, "teal", TWO, if_match=digest_of(ONE)) == "configured"
    assert path.read_bytes() == TWO
    assert names(boxes) == ["teal.box.yaml"]


@pytest.mark.needs_root
def test_what_root_creates_in_a_users_folder_is_that_users(boxes: Path) -> None:
    """A Boxfile of root's, 0600, is one that the user's controller cannot read."""
    os.chown(boxes, 1234, 2345)
    assert apply_text(boxes, "teal", ONE, if_match=ABSENT) == "created"
    facts = (boxes / "teal.box.yaml").stat()
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (1234, 2345, 0o600)


@pytest.mark.needs_root
@pytest.mark.parametrize("filename", ["teal.yaml", "teal.yml", "teal.box.yaml", "teal/Boxfile"])
def test_the_file_that_exists_is_the_one_that_changes(boxes: Path, filename: str) -> None:
    path = boxes / filename
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(ONE)
    path.chmod(0o644)
    os.chown(path, 1234, 2345)
    assert find_source(boxes, "teal") == path
    assert apply_text(boxes, "teal", TWO, if_match=None) == "configured"
    facts = path.stat()
    assert path.read_bytes() == TWO
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (1234, 2345, 0o644)
    assert names(boxes) == [filename.split("/")[0]]
    assert delete_file(boxes, "teal")
    assert names(boxes) == []
    assert not delete_file(boxes, "teal")
    assert find_source(boxes, "teal") is None


def test_toml_stays_toml(boxes: Path) -> None:
    assert apply_text(boxes, "teal", b"cpus = 1\n", if_match=None, suffix=".box.toml") == "created"
    with pytest.raises(Conflict, match="other format"):
        apply_text(boxes, "teal", ONE, if_match=None)
    assert (boxes / "teal.box.toml").read_bytes() == b"cpus = 1\n"


def test_a_folder_with_more_than_its_boxfile_stays(boxes: Path) -> None:
    (boxes / "teal").mkdir()
    (boxes / "teal" / "Boxfile").write_bytes(ONE)
    (boxes / "teal" / "notes").write_bytes(b"mine")
    assert delete_file(boxes, "teal")
    assert names(boxes / "teal") == ["notes"]


# -- conditions -----------------------------------------------------------------------------------


def test_a_condition_that_does_not_hold_is_a_conflict_and_changes_nothing(boxes: Path) -> None:
    path = boxes / "teal.yaml"
    with pytest.raises(Conflict):
        apply_text(boxes, "teal", TWO, if_match=digest_of(ONE))
    assert names(boxes) == []
    path.write_bytes(ONE)
    before = files.path_key(path)
    for condition in (digest_of(TWO), ABSENT, "nonsense"):
        with pytest.raises(Conflict) as caught:
            apply_text(boxes, "teal", TWO, if_match=condition)
        assert str(path) in str(caught.value) and caught.value.fix
        with pytest.raises(Conflict):
            delete_file(boxes, "teal", if_match=condition)
    assert files.path_key(path) == before
    assert names(boxes) == ["teal.yaml"]


def test_absent_as_a_condition_creates(boxes: Path) -> None:
    assert apply_text(boxes, "teal", ONE, if_match=ABSENT) == "created"


def test_bad_names_and_huge_texts_touch_nothing(boxes: Path) -> None:
    for name in ("../x", "", "A", "a/b", ".."):
        with pytest.raises(BadName):
            apply_text(boxes, name, ONE, if_match=None)
        with pytest.raises(BadName):
            delete_file(boxes, name)
    with pytest.raises(UsageError, match="too large"):
        apply_text(boxes, "teal", b"x" * (BOXFILE_MAX + 1), if_match=None)
    assert names(boxes) == []


# -- managed by something else ---------------------------------------------------------------------


def test_a_configmap_file_is_refused_and_untouched(boxes: Path) -> None:
    (boxes / "..v1").mkdir()
    (boxes / "..v1" / "fern.yaml").write_bytes(ONE)
    (boxes / "..data").symlink_to("..v1")
    (boxes / "fern.yaml").symlink_to("..data/fern.yaml")
    for call in (
        lambda: apply_text(boxes, "fern", TWO, if_match=None),
        lambda: delete_file(boxes, "fern"),
    ):
        with pytest.raises(Conflict, match=re.escape("symlink to ..data/fern.yaml")):
            call()
    assert (boxes / "fern.yaml").is_symlink()
    assert (boxes / "..v1" / "fern.yaml").read_bytes() == ONE
    assert names(boxes) == ["..data", "..v1", "fern.yaml"]


def test_a_link_to_the_outside_is_refused_and_its_target_untouched(
    boxes: Path, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.write_bytes(b"canary")
    (boxes / "a.yaml").symlink_to(canary)
    (boxes / "b.yaml").symlink_to(tmp_path / "not-yet")
    (tmp_path / "c").mkdir()
    (boxes / "c").symlink_to(tmp_path / "c")
    for name in ("a", "b"):
        with pytest.raises(Conflict, match="symlink"):
            apply_text(boxes, name, TWO, if_match=None)
    apply_text(boxes, "c", TWO, if_match=None)
    assert canary.read_bytes() == b"canary"
    assert names(tmp_path) == ["boxes", "c", "canary"]
    assert names(tmp_path / "c") == []


def test_a_feeders_file_and_twins_are_refused(boxes: Path) -> None:
    (boxes / "team.d").mkdir()
    (boxes / "team.d" / "a.yaml").write_bytes(ONE)
    with pytest.raises(Conflict, match="feeder"):
        apply_text(boxes, "a", TWO, if_match=None)
    (boxes / "b.yaml").write_bytes(ONE)
    (boxes / "b.yml").write_bytes(ONE)
    with pytest.raises(Conflict, match=re.escape("b.yaml, b.yml")):
        delete_file(boxes, "b")
    assert names(boxes) == ["b.yaml", "b.yml", "team.d"]


def test_something_that_is_no_file_is_refused(boxes: Path) -> None:
    (boxes / "a.box.yaml").mkdir()
    os.mkfifo(boxes / "b.box.yaml")
    for name in ("a", "b"):
        with pytest.raises(Conflict, match="no file stands here"):
            apply_text(boxes, name, ONE, if_match=None)
    assert names(boxes) == ["a.box.yaml", "b.box.yaml"]


# -- disks that refuse ----------------------------------------------------------------------------


@pytest.fixture
def small_disk(boxes: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "boxtest", str(boxes)], check=True)
    try:
        yield boxes
    finally:
        subprocess.run(["umount", "--lazy", str(boxes)], check=True)


@pytest.mark.needs_root
def test_a_full_disk_changes_nothing(small_disk: Path) -> None:
    apply_text(small_disk, "teal", ONE, if_match=None)
    (small_disk / ".filler").write_bytes(b"x" * 50_000)
    for name in ("teal", "new"):
        with pytest.raises(HostError, match="No space left") as caught:
            apply_text(small_disk, name, b"#" * 60_000, if_match=None)
        assert "df -h" in caught.value.fix
    assert (small_disk / "teal.box.yaml").read_bytes() == ONE
    assert names(small_disk) == [".filler", "teal.box.yaml"]


@pytest.mark.needs_root
def test_a_read_only_folder_changes_nothing(small_disk: Path) -> None:
    apply_text(small_disk, "teal", ONE, if_match=None)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for call in (
        lambda: apply_text(small_disk, "teal", TWO, if_match=None),
        lambda: apply_text(small_disk, "new", TWO, if_match=None),
        lambda: delete_file(small_disk, "teal"),
    ):
        with pytest.raises(HostError, match="Read-only file system"):
            call()
    assert (small_disk / "teal.box.yaml").read_bytes() == ONE
    assert names(small_disk) == ["teal.box.yaml"]


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="No such file"):
        apply_text(tmp_path / "nowhere", "teal", ONE, if_match=None)
