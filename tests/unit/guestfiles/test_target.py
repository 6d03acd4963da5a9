"""An export takes its place whole or not at all; files of transfers are there for one command."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from reconcilers.guestfiles import beneath, transfers
from reconcilers.guestfiles.target import Target
from specs.errors import Conflict, UsageError


def build(path: Path, text: str = "words") -> None:
    with Target(path).building() as root:
        descriptor = beneath.make_file(root, b"file")
        os.write(descriptor, text.encode())
        os.close(descriptor)


def test_a_new_directory_is_there_whole(tmp_path: Path) -> None:
    build(tmp_path / "out")
    assert (tmp_path / "out/file").read_text() == "words"
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o777 & ~umask
    assert os.listdir(tmp_path) == ["out"]


def test_an_empty_directory_keeps_its_mode_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o710)
    (tmp_path / "link").symlink_to("real")
    build(tmp_path / "link")
    assert (tmp_path / "real/file").read_text() == "words"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o710
    assert (tmp_path / "link").is_symlink()


def test_what_can_be_no_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/kept").write_text("kept")
    (tmp_path / "file").write_text("kept")
    for path in ("full", "file", "missing/new"):
        with pytest.raises(UsageError):
            Target(tmp_path / path)
    with pytest.raises(UsageError):
        Target(Path("/proc"))
    no_place = pytest.raises(UsageError, match="no directory can be made in /proc")
    with no_place, Target(Path("/proc/new")).building():
        pass
    assert (tmp_path / "full/kept").read_text() == (tmp_path / "file").read_text() == "kept"


def test_no_export_is_where_box_keeps_what_it_goes_by(tmp_path: Path) -> None:
    """What a guest wrote would be a Boxfile, a chain of layers, an image."""
    home, boxes = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home / "disks", boxes):
        folder.mkdir(parents=True)
    (home / "boxes").symlink_to(boxes)
    (tmp_path / "link").symlink_to(home / "disks")
    for path in ("home/new", "home/disks", "home/disks/oak", "link/oak", "elsewhere", "link"):
        with pytest.raises(UsageError, match="where box keeps what it goes by"):
            Target(tmp_path / path, (home, home / "boxes", tmp_path / "missing"))
    with Target(tmp_path / "new", (home, home / "boxes")).building():
        pass
    assert not list((home / "disks").iterdir()) and not list(boxes.iterdir())


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    for existed in (False, True):
        path = tmp_path / "out"
        if existed:
            path.mkdir()
        with pytest.raises(OSError, match="full"), Target(path).building() as root:
            os.close(beneath.make_folder(root, b"d"))
            raise OSError("the disk is full")
        assert os.listdir(tmp_path) == (["out"] if existed else [])
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("existed", [False, True])
def test_what_comes_into_its_place_meanwhile_is_not_replaced(tmp_path: Path, existed: bool) -> None:
    path = tmp_path / "out"
    if existed:
        path.mkdir()
    with pytest.raises(Conflict), Target(path).building():
        path.mkdir(exist_ok=True)
        (path / "theirs").write_text("kept")
    assert (path / "theirs").read_text() == "kept"
    assert os.listdir(tmp_path) == ["out"]


KILLED = """
import os, sys, time
from pathlib import Path
from reconcilers.guestfiles import beneath, transfers
from reconcilers.guestfiles.target import Target
with transfers.new(Path(sys.argv[1]) / "transfers"):
    with Target(Path(sys.argv[1]) / "out").building() as root:
        folder = beneath.make_folder(root, b"closed")
        os.close(beneath.make_file(folder, b"file"))
        os.fchmod(folder, 0)
        print("ready", flush=True)
        time.sleep(60)
"""


def test_what_a_killed_export_left_is_removed_and_a_running_ones_is_not(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", KILLED, str(tmp_path)]
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        mine = tmp_path / ".box-export-mine-to-keep"
        mine.mkdir()
        build(tmp_path / "other")
        transfers.sweep(tmp_path / "transfers")
        assert len(os.listdir(tmp_path / "transfers")) == 1
        left = [name for name in os.listdir(tmp_path) if name.startswith(".box-export-")]
        assert len(left) == 2, "the one that is being built is left alone"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out").exists()
    build(tmp_path / "out")
    transfers.sweep(tmp_path / "transfers")
    assert sorted(os.listdir(tmp_path)) == [
        ".box-export-mine-to-keep", "other", "out", "transfers",
    ]  # fmt: skip
    assert os.listdir(tmp_path / "transfers") == []


def test_a_transfer_is_private_found_by_its_id_and_gone_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "transfers"
    with transfers.new(folder) as (name, descriptor):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        os.write(descriptor, b"words")
        with transfers.existing(folder, name) as other:
            assert os.read(other, 9) == b"words"
            transfers.sweep(folder)
            assert os.listdir(folder) == [name]
    assert os.listdir(folder) == []


def test_what_is_no_folder_of_transfers_holds_no_scan_up(tmp_path: Path) -> None:
    """A scan goes on to look for VMs that nobody asked for."""
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "loop").symlink_to("loop")
    for name in ("missing", "file", "closed", "loop"):
        transfers.sweep(tmp_path / name)


def test_only_what_is_in_the_folder_itself_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may be in the home of somebody, who lets it lead elsewhere at any moment."""
    folder, other, name = tmp_path / "transfers", tmp_path / "other", "0123456789abcdef"
    for each in (folder, other):
        each.mkdir(mode=0o700)
        (each / name).touch()
    opened = transfers._opened

    def swapped(path: Path) -> int:
        at = opened(path)
        folder.rename(tmp_path / "aside")
        folder.symlink_to("other")
        return at

    monkeypatch.setattr(transfers, "_opened", swapped)
    with transfers.new(folder):
        assert not (tmp_path / "aside" / name).exists()
    transfers.sweep(folder)
    assert (other / name).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it uses the home of somebody else")
def test_what_root_makes_in_a_users_home_is_that_users(tmp_path: Path) -> None:
    """Else neither the user nor the controller could make a transfer there ever again."""
    os.chown(tmp_path, 1234, 1235)
    folder = tmp_path / "transfers"
    for _ in range(2):
        with transfers.new(folder) as (name, _descriptor):
            for path in (folder, folder / name):
                facts = path.stat()
                assert (facts.st_uid, facts.st_gid) == (1234, 1235)
    os.chown(folder, 0, 0)
    with transfers.new(folder) as (name, _descriptor):
        assert folder.stat().st_uid == 1234, "what an older version made is given over, too"


def test_a_transfer_that_is_locked_for_one_alone_is_waited_for_by_nobody(tmp_path: Path) -> None:
    """The controller serves others meanwhile."""
    folder = tmp_path / "transfers"
    with transfers.new(folder) as (name, descriptor):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="locked"), transfers.existing(folder, name):
            pass


def test_only_an_id_of_a_file_of_ours_is_a_transfer(tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("kept")
    (tmp_path / "a123456789abcdef").symlink_to("canary")
    (tmp_path / "b123456789abcdef").mkdir()
    names = ["../canary", "canary", "", "0" * 16, "a123456789abcdef", "b123456789abcdef"]
    for name in names:
        with pytest.raises(UsageError), transfers.existing(tmp_path, name):
            pass
    transfers.sweep(tmp_path)
    assert (tmp_path / "canary").read_text() == "kept"


def test_a_folder_that_others_may_write_takes_no_transfer(tmp_path: Path) -> None:
    folder = tmp_path / "transfers"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Exception, match="others may write"), transfers.new(folder):
        pass
    assert os.listdir(folder) == []


def test_a_lock_is_what_keeps_a_file(tmp_path: Path) -> None:
    name = "0123456789abcdef"
    (tmp_path / name).write_text("x")
    descriptor = os.open(tmp_path / name, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    transfers.sweep(tmp_path)
    assert (tmp_path / name).exists()
    os.close(descriptor)
    transfers.sweep(tmp_path)
    assert not (tmp_path / name).exists()
