"""The thin system calls do what their manual pages say, and their errors keep errno and path."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from reconcilers.confinement import syscalls

BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS


@pytest.fixture
def folder(tmp_path: Path) -> int:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "file").write_text("words")
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "inside" / "link").symlink_to("file")
    (tmp_path / "inside" / "escape").symlink_to("../outside")
    return os.open(tmp_path / "inside", os.O_PATH | os.O_DIRECTORY)


def test_openat2_opens_beneath_and_closes_on_exec(folder: int) -> None:
    descriptor = syscalls.openat2(folder, "file", os.O_RDONLY, BENEATH)
    assert os.read(descriptor, 10) == b"words"
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("path", "resolve", "number"),
    [
        ("../outside", BENEATH, errno.EXDEV),
        ("/etc/passwd", BENEATH, errno.EXDEV),
        ("link", BENEATH, errno.ELOOP),
        ("escape", syscalls.RESOLVE_BENEATH, errno.EXDEV),
        ("absent", BENEATH, errno.ENOENT),
    ],
)
def test_openat2_refuses_with_errno_and_path(
    folder: int, path: str, resolve: int, number: int
) -> None:
    with pytest.raises(OSError) as caught:
        syscalls.openat2(folder, path, os.O_RDONLY, resolve)
    assert (caught.value.errno, caught.value.filename) == (number, path)


def test_openat2_creates_with_the_mode_it_is_told(folder: int, tmp_path: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    os.close(syscalls.openat2(folder, "new", flags, BENEATH, 0o600))
    assert (tmp_path / "inside" / "new").stat().st_mode & 0o777 == 0o600


def test_exchange_swaps_two_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A")
    (tmp_path / "b").write_text("B")
    here = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    syscalls.renameat2_exchange(here, "a", here, "b")
    assert (tmp_path / "a").read_text() == "B"
    with pytest.raises(FileNotFoundError):
        syscalls.renameat2_exchange(here, "a", here, "absent")
    os.close(here)


def test_noreplace_never_replaces(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A")
    (tmp_path / "b").write_text("B")
    here = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    with pytest.raises(FileExistsError):
        syscalls.renameat2_noreplace(here, "a", here, "b")
    assert (tmp_path / "b").read_text() == "B"
    syscalls.renameat2_noreplace(here, "a", here, "c")
    assert (tmp_path / "c").read_text() == "A"
    os.close(here)
