"""Small files of ours, and what may stand in their place: nothing there may stop the controller."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reconcilers.console import ConsoleLog
from reconcilers.images.store import Images
from reconcilers.smallfile import LIMIT, read_small
from specs.errors import HostError

BASE = "builtin:busybox"


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_huge_hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00" * 30)


OBSTACLES = (a_fifo, a_folder, a_link_to_a_device, a_huge_hole)


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x" * LIMIT)
    assert read_small(path) == b"x" * LIMIT


@pytest.mark.timeout(60)
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_is_no_small_file_is_an_error(
    tmp_path: Path, obstacle: Callable[[Path], None]
) -> None:
    obstacle(tmp_path / "small")
    with pytest.raises((OSError, HostError)):
        read_small(tmp_path / "small")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("obstacle", [*OBSTACLES, no_text])
def test_an_image_whose_hash_cannot_be_read_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: Callable[[Path], None]
) -> None:
    images = Images(tmp_path)
    monkeypatch.setattr(images, "digest_for", lambda base: "digest")
    (tmp_path / "digest").mkdir()
    (tmp_path / "digest/root.squashfs").touch()
    obstacle(tmp_path / "digest/sha256")
    assert images.observe(BASE) is None


@pytest.mark.timeout(60)
def test_a_fifo_in_place_of_a_console_log_stops_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "console.log")
    with pytest.raises(OSError, match="No such device"):
        ConsoleLog(tmp_path / "console.log").append(b"text")
