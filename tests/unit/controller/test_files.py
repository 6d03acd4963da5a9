"""Atomic writes and bounded reads."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import files
from specs.errors import HostError

MIB = 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, so that a full disk is a real one."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "boxtest", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_write_sets_bytes_and_mode_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o644)
    files.write_atomic(path, b"new", 0o640)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a"]


def test_write_replaces_a_symlink_and_not_what_it_leads_to(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_bytes(b"canary")
    link = tmp_path / "link"
    link.symlink_to(canary)
    files.write_atomic(link, b"new")
    assert canary.read_bytes() == b"canary"
    assert not link.is_symlink()


@pytest.mark.needs_root
def test_full_disk_keeps_the_old_bytes_and_says_what_to_do(small_disk: Path) -> None:
    path = small_disk / "a"
    files.write_atomic(path, b"old")
    with pytest.raises(HostError) as caught:
        files.write_atomic(path, b"x" * MIB)
    assert "No space left" in str(caught.value)
    assert "df -h" in caught.value.fix
    assert path.read_bytes() == b"old"
    assert os.listdir(small_disk) == ["a"]


@pytest.mark.needs_root
def test_read_only_file_system_is_a_clear_error(small_disk: Path) -> None:
    path = small_disk / "a"
    files.write_atomic(path, b"old")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(HostError, match="Read-only file system"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_reader_never_sees_a_torn_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    versions = [bytes([65 + i]) * 100_000 for i in range(4)]
    files.write_atomic(path, versions[0])
    stop = threading.Event()
    seen: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(files.read_bounded(path, MIB))

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(100):
        files.write_atomic(path, versions[i % 4])
    stop.set()
    reader.join()
    assert len(seen) > 10
    assert set(seen) <= set(versions)


def test_a_killed_writer_leaves_old_bytes_and_its_leftover_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write_atomic(path, b"old")
    # The child stops between the temporary file and the rename, and is killed there.
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, signal, sys; from pathlib import Path; from controller import files;"
            "Path.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL);"
            "files.write_atomic(Path(sys.argv[1]), b'new')",
            str(path),
        ],
        cwd=Path(__file__).resolve().parents[3],
    )
    assert child.wait(60) == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == 2
    assert files.remove_leftovers(tmp_path) == 1
    assert os.listdir(tmp_path) == ["a"]


def test_read_refuses_more_than_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 11)
    assert files.read_bounded(path, 11) == b"x" * 11
    with pytest.raises(files.TooLarge):
        files.read_bounded(path, 10)


def test_read_does_not_wait_for_a_fifo(tmp_path: Path) -> None:
    path = tmp_path / "a"
    os.mkfifo(path)
    with pytest.raises(files.NotAFile):  # else it would be for ever
        files.read_bounded(path, 10)


def test_read_follows_no_symlink(tmp_path: Path) -> None:
    (tmp_path / "canary").write_bytes(b"canary")
    (tmp_path / "a").symlink_to("canary")
    with pytest.raises(files.NotAFile):
        files.read_bounded(tmp_path / "a", 10)


def test_nothing_is_opened_when_a_folder_stands_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(HostError, match="a"):
        files.write_atomic(tmp_path / "a", b"new")
    assert os.listdir(tmp_path) == ["a"]


def test_moving_aside_never_replaces_an_earlier_copy(tmp_path: Path) -> None:
    moved = set()
    for text in ("one", "two", "three"):
        (tmp_path / "a").write_text(text)
        moved.add(files.move_aside(tmp_path / "a"))
    assert sorted(path.read_text() for path in moved) == ["one", "three", "two"]


def test_every_write_error_names_the_path_and_a_fix(tmp_path: Path) -> None:
    for number in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO):
        error = files.write_error(tmp_path / "a", OSError(number, os.strerror(number)))
        assert str(tmp_path / "a") in str(error)
        assert error.fix
