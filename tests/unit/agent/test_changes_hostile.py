"""Changes that no fork should have, and lists of them that are none: the parent's side holds."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from agent.archive import Change, Kind, Record, Window, records
from reconcilers.guestfiles.changes import LeftOut
from tests import hostile
from tests.unit.agent.guest import Guest
from tests.unit.agent.merging import Told, changes, prepared, remove

FILE = Record(Kind.FILE, b"f", 0o644, 5, change=Change.ADDED)
DATA = Record(Kind.DATA, length=5)
END = Record(Kind.END, size=1, length=5)


@pytest.mark.parametrize(
    "parts",
    [
        [(FILE, b""), (DATA, b"words")],
        [(FILE._replace(change=0), b""), (DATA, b"words"), (END, b"")],
        [(FILE, b""), (DATA._replace(size=1), b"words"), (END, b"")],
        [(FILE._replace(name=b".."), b""), (END, b"")],
        [(Record(Kind.HARD, b"h", number=1, change=1), b""), (Record(Kind.END, size=1), b"")],
        [(Record(Kind.GONE_FOLDER, b"d"), b""), (FILE, b""), (DATA, b"words"), (END, b"")],
        [(Record(Kind.GONE_FOLDER, b"d"), b""), (Record(Kind.END, size=1), b"")],
        [(Record(Kind.PASS, b"d"), b""), (Record(Kind.END), b"")],
        [(Record(Kind.LEAVE), b""), (Record(Kind.END), b"")],
        [(FILE, b""), (Record(Kind.TOP, change=4), b""), (Record(Kind.END, size=2), b"")],
        [(FILE._replace(name=b".box-import-ready"), b""), (DATA, b"words"), (END, b"")],
        [(Record(Kind.GONE, b".box-import-new"), b""), (Record(Kind.END, size=1), b"")],
        [(Record(99), b"")],
        [],
    ],
)
def test_malformed_changes_change_nothing(
    guest: Guest, tmp_path: Path, parts: list[tuple[Record, bytes]]
) -> None:
    prepared(guest, tmp_path, "kept")
    guest.put_records(*parts, changes=True)
    assert "malformed" in guest.run("merge", "theirs", status=127)
    assert os.listdir(guest.data) == ["kept"]


def was_folder(guest: Guest, tmp_path: Path) -> Record:
    """What is told of the directory `work` when it is gone."""
    _base, fork = prepared(guest, tmp_path, "work/old")
    shutil.rmtree(fork / "work")
    changes(guest, fork)
    with guest.transfer.open("rb") as file:
        whole = file.read(4096)
    window = Window(lambda at, size: whole[at : at + size], len(whole))
    return next(each for each in records(window, changes=True) if each.kind == Kind.WAS)


GONE_WORK = (Record(Kind.GONE_FOLDER, b"work"), b"")
LEAVE = (Record(Kind.LEAVE), b"")


@pytest.mark.parametrize("what", ["it is gone", "a file over it", "gone in what is gone"])
def test_nothing_that_the_parent_put_into_a_directory_goes_untold(
    guest: Guest, tmp_path: Path, what: str
) -> None:
    """The list says of no directory what was in it, as only a fork's own machine would write it."""
    was = (was_folder(guest, tmp_path), b"")
    new = guest.data / "work/new"
    if what == "it is gone":
        told = [was, (Record(Kind.GONE, b"work"), b"")]
    elif what == "a file over it":
        told = [was, (Record(Kind.FILE, b"work", 0o644, change=Change.TYPE), b"")]
    else:
        new = guest.data / "work/old/new"
        new.parent.unlink()
        new.parent.mkdir()
        shutil.copystat(guest.data / "work", new.parent)
        told = [was, GONE_WORK, was, (Record(Kind.GONE, b"old"), b""), LEAVE]
    new.write_text("the parent's")
    count = 2 if len(told) > 2 else 1
    guest.put_records(*told, (Record(Kind.END, size=count), b""), changes=True)
    found = Told.read(guest.told("merge", "none"))
    assert str(new.relative_to(guest.data)) in found.conflicts
    assert new.read_text() == "the parent's"


def test_a_plain_archive_is_none_of_changes(guest: Guest, tmp_path: Path) -> None:
    prepared(guest, tmp_path, "kept")
    guest.put(guest.data)
    assert "malformed" in guest.run("merge", "none", status=127)


def test_a_hostile_tree_is_told_and_applied_beside_a_canary(guest: Guest, tmp_path: Path) -> None:
    _base, fork = prepared(guest, tmp_path)
    with hostile.guarded(tmp_path / "canary") as canary:
        hostile.make(fork, canary)
        told = changes(guest, fork)
        left_out = {os.fsdecode(each.path): each.why for each in told if isinstance(each, LeftOut)}
        devices = hostile.DEVICES if os.geteuid() == 0 else {}
        for name, what in {**hostile.SPECIALS, **devices}.items():
            assert left_out[name] == f"{what}, left out"
        assert guest.transfer.stat().st_blocks * 512 < 2 << 20, "holes take no room"
        found = Told.read(guest.told("merge", "none"))
        assert found.conflicts == {} and found.taken == len(told) - len(left_out)
    for name, leads in hostile.LINKS.items():
        assert os.readlink(guest.data / name) == leads
    for odd, words in hostile.NAMES.items():
        assert (guest.data / os.fsdecode(odd)).read_text() == words
    assert (guest.data / "plain").stat().st_ino == (guest.data / "twin").stat().st_ino
    assert (guest.data / "sparse").stat().st_size == 40 << 30
    # It stays in a guest, so it stays what it was.
    assert stat.S_IMODE((guest.data / "setuid").stat().st_mode) & 0o4000
    hostile._check_depth(guest.data)
    for path in (fork, guest.data):
        hostile.remove(path)


@pytest.mark.timeout(600)
def test_changes_with_wrong_bytes_are_refused_or_stay_within(guest: Guest, tmp_path: Path) -> None:
    """The list comes from a machine that a fork may have taken over."""
    chance = random.Random(os.environ.get("BOX_FUZZ_SEED", "20261130"))
    _base, fork = prepared(guest, tmp_path, "f", "d/g", "d/e/h", "gone/i")
    shutil.rmtree(fork / "gone")
    (fork / "d/g").write_text("new")
    os.link(fork / "f", fork / "d/twin")
    os.setxattr(fork / "d/e/h", "user.note", b"x")
    (fork / "link").symlink_to("../../outside")
    changes(guest, fork)
    with guest.transfer.open("rb") as file:
        whole = file.read(8192)
    used = len(whole.rstrip(b"\0")) + 8
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    beside = sorted(os.listdir(tmp_path))
    kept = tmp_path / "kept"
    guest.data.rename(kept)
    for _ in range(int(os.environ.get("BOX_FUZZ_ROUNDS", "150"))):
        shutil.copytree(kept, guest.data, symlinks=True)
        made = bytearray(whole)
        for _ in range(chance.choice([1, 1, 2, 5])):
            made[chance.randrange(16, used)] = chance.choice([0, 1, 2, 9, 10, 11, 0xFF, 0x2F])
        guest.transfer.write_bytes(made)
        done = subprocess.run(
            [guest.driver, "merge", "theirs"], cwd=guest.folder, capture_output=True, timeout=60
        )
        assert done.returncode in (0, 127), (bytes(made[:used]).hex(), done.stderr)
        if done.returncode == 0:
            Told.read(done.stdout)
        remove(guest.data)
        assert outside.read_text() == "untouched"
    kept.rename(guest.data)
    assert sorted(os.listdir(tmp_path)) == beside
