"""A full file system on the host's side of a transfer: all of it or nothing."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.guestfiles import transfers
from reconcilers.guestfiles.notes import Notes
from reconcilers.guestfiles.pack import pack
from reconcilers.guestfiles.target import Target
from reconcilers.guestfiles.unpack import unpack
from tests.unit.guestfiles.archives import archive, file, folder, leave, opened

pytestmark = pytest.mark.needs_root


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    path = tmp_path / "small"
    path.mkdir()
    options = "size=256k,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "boxtest", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize("size", [9_000, 100_000])
def test_an_export_that_finds_no_room_leaves_nothing(
    tmp_path: Path, small: Path, size: int
) -> None:
    files = [file(b"%d" % number, b"x" * size) for number in range(400_000 // size)]
    content = archive(folder(b"d"), *files, leave())
    with (
        opened(content, tmp_path / "archive") as source,
        pytest.raises(OSError) as caught,
        Target(small / "out").building() as root,
    ):
        unpack(root, source, Notes())
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(small) == []


@pytest.mark.parametrize("size", [9_000, 100_000])
def test_an_import_that_finds_no_room_leaves_nothing(
    tmp_path: Path, small: Path, size: int
) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(400_000 // size):
        (tmp_path / "tree" / str(number)).write_bytes(b"x" * size)
    root = os.open(tmp_path / "tree", os.O_RDONLY)
    with pytest.raises(OSError) as caught, transfers.new(small / "t") as (_, descriptor):
        pack(root, descriptor, Notes())
    os.close(root)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(small / "t") == []
