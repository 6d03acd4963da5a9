"""Snapshots on a real file system: what each verb leaves in a disk's folder."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconcilers import chain, layers, snapshots
from reconcilers import disk as disks
from reconcilers.facts import MIB, Disk
from reconcilers.snapshots import Moment
from specs.errors import BoxError, HostError
from tests.unit.programs import needs_mke2fs

pytestmark = needs_mke2fs
NOW = Moment("2026-11-30T14:00:00.000Z", "2026-11-30-140000")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "disks" / "oak"
    disks.create(made, 16)
    return made


def seen(folder: Path) -> Disk:
    found = disks.observe(folder)
    assert found is not None
    return found


def checked(folder: Path) -> list[str]:
    """The layers in force; nothing else is in the folder, and only the top may be written."""
    found, whole = layers.read(folder) or (None, False)
    assert found is not None and whole
    assert {path.name for path in folder.iterdir()} == {layers.CHAIN, *found.files}
    for file in found.files:
        mode = 0o600 if file == found.top.file else 0o400
        assert (folder / file).stat().st_mode & 0o7777 == mode, file
    assert seen(folder).private
    return [layer.file for layer in found.layers]


def mark(folder: Path, text: bytes) -> None:
    """What a VMM would do to the top: it is another file from then on."""
    with open(seen(folder).path, "ab") as file:
        file.write(text)


def test_a_snapshot_freezes_what_was_there_and_restore_brings_it_back(folder: Path) -> None:
    base = seen(folder)
    assert snapshots.take(folder, "first", NOW) == "first"
    top = seen(folder)
    assert (top.beneath, top.format, top.size) == ((base.path,), "qcow2", 16 * MIB)
    assert top.formats == ("raw", "qcow2")
    assert top.size < top.most_bytes < 40 * MIB
    mark(folder, b"later")
    assert snapshots.take(folder, "", NOW) == NOW.word
    assert len(checked(folder)) == 3
    lost = seen(folder).path
    assert snapshots.restore(folder, "first", NOW, discard=True) == ""
    assert seen(folder).beneath == (base.path,)
    assert seen(folder).path != top.path, "what came after the snapshot would show through"
    assert not lost.exists()
    assert checked(folder)[:-1] == [base.path.name]


def test_restore_and_reset_keep_what_they_replace(folder: Path) -> None:
    snapshots.take(folder, "first", NOW)
    mark(folder, b"work")
    work = seen(folder).path
    kept = snapshots.restore(folder, "first", NOW, discard=False)
    assert kept == f"before-restore-{NOW.word}"
    again = snapshots.reset(folder, 32, NOW, discard=False)
    assert again == f"before-reset-{NOW.word}"
    assert (seen(folder).format, seen(folder).size, seen(folder).beneath) == ("raw", 32 * MIB, ())
    checked(folder)
    snapshots.restore(folder, kept, NOW, discard=True)
    assert seen(folder).beneath[-1] == work
    assert seen(folder).size == 32 * MIB, "a disk never shrinks"
    assert [each.label for each in snapshots.read(folder).snapshots] == ["first", kept, again]


def test_a_forgotten_snapshot_gives_back_only_what_nothing_else_needs(folder: Path) -> None:
    snapshots.take(folder, "first", NOW)
    snapshots.take(folder, "second", NOW)
    before = checked(folder)
    snapshots.forget(folder, "first")
    assert checked(folder) == before, "its layers are those of the disk"
    snapshots.reset(folder, 16, NOW, discard=True)
    checked(folder)
    snapshots.forget(folder, "second")
    assert len(checked(folder)) == 1
    assert len(list(folder.iterdir())) == 2


def test_a_disk_of_overlays_grows_by_its_chain(folder: Path) -> None:
    snapshots.take(folder, "first", NOW)
    disks.grow(seen(folder), 64)
    disks.grow(seen(folder), 32)
    grown = seen(folder)
    assert (grown.size, grown.made) == (64 * MIB, 16 * MIB)
    mark(folder, b"written")
    snapshots.take(folder, "second", NOW)
    assert (seen(folder).size, seen(folder).made) == (64 * MIB, 64 * MIB)


@pytest.mark.parametrize("verb", ["take", "restore", "reset"])
@pytest.mark.parametrize("room", [0, 100, 70_000, 200_000])
def test_without_room_the_former_disk_stays_and_nothing_is_listed(
    folder: Path, verb: str, room: int
) -> None:
    snapshots.take(folder, "first", NOW)
    mark(folder, b"written")
    before, files = snapshots.read(folder), checked(folder)
    with files_of_at_most(room), pytest.raises((BoxError, OSError)):
        if verb == "take":
            snapshots.take(folder, "second", NOW)
        elif verb == "restore":
            snapshots.restore(folder, "first", NOW, discard=False)
        else:
            snapshots.reset(folder, 16, NOW, discard=False)
    assert snapshots.read(folder) == before
    assert checked(folder) == files


def test_a_disk_that_nobody_wrote_to_since_gets_no_layer_more(folder: Path) -> None:
    for number in range(40):
        snapshots.take(folder, f"s{number}", NOW)
    assert len(checked(folder)) == 2
    assert {len(each.layers) for each in snapshots.read(folder).snapshots} == {1}
    mark(folder, b"written")
    snapshots.take(folder, "later", NOW)
    assert len(checked(folder)) == 3


def test_as_many_snapshots_of_as_many_layers_as_there_may_be_can_be_read(folder: Path) -> None:
    """Of a disk whose layers a fork shares, so that they are not merged when snapshots go."""
    for number in range(chain.LAYERS_MAX - 1):
        mark(folder, b"%d" % number)
        snapshots.take(folder, f"s{number:061}e", snapshots.now())
    for each in snapshots.listed(folder)[:-1]:
        snapshots.forget(folder, each.label)
    for number in range(chain.SNAPSHOTS_MAX - 1):
        snapshots.take(folder, f"t{number:061}e", snapshots.now())
    assert len(snapshots.listed(folder)) == chain.SNAPSHOTS_MAX
    assert disks.belongs_to(folder) == folder.name


def test_a_chain_that_could_not_be_read_again_is_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = checked(folder)
    monkeypatch.setattr(layers, "CHAIN_MAX", (folder / layers.CHAIN).stat().st_size + 10)
    with pytest.raises(HostError, match="larger than"):
        snapshots.take(folder, "one", snapshots.now())
    assert checked(folder) == before


def test_a_fork_shares_what_was_there_and_nothing_later(folder: Path) -> None:
    other = folder.with_name("try")
    snapshots.fork(folder, other, 16, NOW)
    base = folder / chain.BASE
    assert seen(other).beneath == (other / chain.BASE,)
    assert base.stat().st_ino == (other / chain.BASE).stat().st_ino
    assert seen(folder).path.name != seen(other).path.name
    assert disks.belongs_to(other) == "try"
    for each in (folder, other):
        assert len(checked(each)) == 2
    origin = snapshots.read(other).origin
    assert origin is not None
    assert (origin.of, [layer.file for layer in origin.layers]) == ("oak", [chain.BASE])
    # nobody wrote to the parent since: another fork costs it nothing
    for number in range(40):
        snapshots.fork(folder, folder.with_name(f"try{number}"), 32, NOW)
    assert len(checked(folder)) == 2
    assert seen(folder.with_name("try0")).size == 32 * MIB
    # neither depends on the other's folder
    shutil.rmtree(folder)
    mark(other, b"more")
    snapshots.fork(other, folder.with_name("grandchild"), 16, NOW)
    disks.erase(other)
    assert len(checked(folder.with_name("grandchild"))) == 3
    assert (folder.with_name("try1") / chain.BASE).stat().st_size == 16 * MIB


def test_a_fork_keeps_what_it_began_with_for_a_comparison(folder: Path) -> None:
    other = folder.with_name("try")
    snapshots.fork(folder, other, 16, NOW)
    snapshots.reset(other, 16, NOW, discard=True)
    assert (other / chain.BASE).exists()
    assert len(checked(other)) == 1


def test_a_fork_that_cannot_be_made_leaves_nothing(folder: Path) -> None:
    other = folder.with_name("try")
    with pytest.raises(HostError, match=r"data\.size_mib is 8, and the disk of oak"):
        snapshots.fork(folder, other, 8, NOW)
    before = checked(folder)
    with files_of_at_most(0), pytest.raises((BoxError, OSError)):
        snapshots.fork(folder, other, 16, NOW)
    assert checked(folder) == before
    snapshots.take(folder, "first", NOW)
    with files_of_at_most(0), pytest.raises((BoxError, OSError)):
        snapshots.fork(folder, other, 16, NOW)
    assert [path.name for path in folder.parent.iterdir()] == ["oak"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """EFBIG instead of ENOSPC: the same place, on any file system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_killed_controller_left_is_swept(folder: Path) -> None:
    snapshots.take(folder, "first", NOW)
    kept = checked(folder)
    (folder / "feedfeedfeedfeed.qcow2").write_bytes(b"half")
    (folder / "feedfeedfeedfeed.raw").symlink_to("/etc/passwd")
    (folder / ".chain.toml.new").write_text("half")
    (folder / kept[0]).chmod(0o600)
    (folder / "notes.txt").write_text("somebody's own")
    disks.sweep(folder.parent)
    assert (folder / "notes.txt").read_text() == "somebody's own"
    (folder / "notes.txt").unlink()
    assert checked(folder) == kept


def test_a_lost_chain_removes_nothing_and_says_what_to_do(folder: Path) -> None:
    snapshots.take(folder, "first", NOW)
    files = {path.name for path in folder.iterdir()}
    for damage in ("garbage [", None):
        (folder / layers.CHAIN).unlink()
        if damage is not None:
            (folder / layers.CHAIN).write_text(damage)
        with pytest.raises(HostError, match=r"2 layers alone do not say.*\n.*backup"):
            disks.observe(folder)
        disks.sweep(folder.parent)
        with pytest.raises(BoxError):
            snapshots.reset(folder, 16, NOW, discard=True)
    assert {path.name for path in folder.iterdir()} == files - {layers.CHAIN}


def test_a_missing_layer_is_named(folder: Path) -> None:
    snapshots.take(folder, "first", NOW)
    (folder / chain.BASE).unlink()
    with pytest.raises(HostError, match=r"base\.raw, a layer of its disk, is gone"):
        disks.observe(folder)


def test_a_frozen_layer_that_may_be_written_is_mended(folder: Path) -> None:
    snapshots.take(folder, "first", NOW)
    (folder / chain.BASE).chmod(0o644)
    assert not seen(folder).private
    disks.mend(seen(folder))
    checked(folder)


def test_only_the_top_is_opened_for_writing(folder: Path) -> None:
    snapshots.take(folder, "first", NOW)
    snapshots.take(folder, "second", NOW)
    disk = seen(folder)
    opened = disks.open_for_vmm(disk)
    try:
        assert [os.readlink(f"/proc/self/fd/{each}") for each in opened] == [
            *map(str, disk.beneath),
            str(disk.path),
        ]
        for each in opened[:-1]:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(each, b"x")
        os.write(opened[-1], b"")
    finally:
        for each in opened:
            os.close(each)
