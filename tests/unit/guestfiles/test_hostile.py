"""All of a hostile tree at once, in as an import reads it and out as an export writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.guestfiles import beneath
from reconcilers.guestfiles.notes import Notes
from reconcilers.guestfiles.pack import pack
from reconcilers.guestfiles.unpack import unpack
from specs.errors import ProtocolError
from tests import hostile
from tests.unit.guestfiles.archives import archive, file


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    with hostile.guarded(tmp_path / "canary") as path:
        yield path


def moved(source: Path, target: Path) -> tuple[Notes, Notes]:
    """Packed, and unpacked into the new directory `target`."""
    told, notes = Notes(), Notes()
    target.mkdir()
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, target)]
    between = os.open(target.with_name("archive"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        pack(descriptors[0], between, told)
        assert os.fstat(between).st_blocks * 512 < 2 << 20, "holes take no room"
        unpack(descriptors[1], between, notes)
    finally:
        for each in (*descriptors, between):
            os.close(each)
    return told, notes


def test_a_hostile_tree_goes_in_and_comes_out(tmp_path: Path, canary: Path) -> None:
    """Cases A3 and A6: it takes seconds, what is special is never opened, names are exact."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    hostile.make(source, canary)
    told, notes = moved(source, target)
    root = os.geteuid() == 0
    if not root:  # who may not look into it is told so
        assert dict(told.paths)["closed"] == "cannot be read, left out"
    hostile.check(target, canary, os.geteuid())
    hostile.check_told(dict(told.paths), devices=root)
    twins = {path for path, what in notes.paths if "the same name as" in what}
    assert len(twins) == 2, notes.paths
    for path in (source, target):
        hostile.remove(path)


def test_a_file_that_has_a_name_outside_goes_in_as_a_file(tmp_path: Path) -> None:
    """A hard link to something else of the host, which who has it may read: nothing else becomes
    of that.
    """
    outside, source, target = tmp_path / "outside", tmp_path / "source", tmp_path / "target"
    source.mkdir()
    outside.write_text(hostile.SECRET)
    os.link(outside, source / "inside")
    before = outside.stat()
    told, notes = moved(source, target)
    assert (target / "inside").read_text() == hostile.SECRET
    assert (target / "inside").stat().st_nlink == 1
    after = outside.stat()
    assert (before.st_mode, before.st_nlink, before.st_mtime_ns, before.st_uid) == (
        after.st_mode, after.st_nlink, after.st_mtime_ns, after.st_uid,
    )  # fmt: skip
    assert told.total == notes.total == 0


def test_an_archive_that_becomes_shorter_while_it_is_read_is_refused(
    tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of box shortens one; an enemy who could must not make files of what is not there."""
    path, real = tmp_path / "archive", beneath.make_file
    path.write_bytes(archive(*(file(b"%d" % number, b"x" * 100_000) for number in range(40))))

    def and_then(directory: int, name: bytes) -> int:
        os.truncate(path, 2_000_000)
        return real(directory, name)

    monkeypatch.setattr(beneath, "make_file", and_then)
    target = tmp_path / "target"
    target.mkdir()
    root, source = os.open(target, os.O_RDONLY), os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(ProtocolError, match="ends in the middle"):
            unpack(root, source, Notes())
    finally:
        os.close(root)
        os.close(source)
    for made in target.iterdir():
        assert set(made.read_bytes()) <= {0, ord("x")}
