"""The socket as a file: made with the right mode, replaced only when stale, removed only when
ours.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from controller.socketfile import answers, bind, connect
from specs.errors import Conflict, HostError


def test_the_socket_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    for mask in (0o000, 0o022, 0o777):
        before = os.umask(mask)
        try:
            listener = bind(tmp_path / "box.sock")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "box.sock").stat().st_mode) == 0o600
        listener.close()
    assert list(tmp_path.iterdir()) == []


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "box.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    assert not answers(path)
    listener = bind(path)
    assert answers(path)
    listener.close()


def test_a_live_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "box.sock"
    first = bind(path)
    inode = path.stat().st_ino
    with pytest.raises(Conflict, match="another controller"):
        bind(path)
    assert path.stat().st_ino == inode
    assert answers(path)
    first.close()


def test_a_live_socket_with_a_full_queue_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "box.sock"
    busy = socket.socket(socket.AF_UNIX)
    busy.bind(str(path))
    busy.listen(0)
    waiting = connect(path, timeout=1)
    with pytest.raises(Conflict):
        bind(path)
    waiting.close()
    busy.close()


@pytest.mark.parametrize("kind", ["file", "link to a file", "link to nothing", "folder", "fifo"])
def test_what_is_no_socket_is_refused_and_untouched(tmp_path: Path, kind: str) -> None:
    path, canary = tmp_path / "box.sock", tmp_path / "canary"
    canary.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(canary if kind == "link to a file" else tmp_path / "nothing")
    before = path.lstat()
    with pytest.raises(HostError, match="not a socket"):
        bind(path)
    assert (path.lstat().st_ino, path.lstat().st_mtime) == (before.st_ino, before.st_mtime)
    assert canary.read_text() == "precious"


def test_closing_leaves_a_newer_controllers_socket(tmp_path: Path) -> None:
    path = tmp_path / "box.sock"
    old = bind(path)
    path.unlink()
    new = bind(path)
    old.close()
    assert answers(path)
    new.close()
    assert not path.exists()


def test_a_path_too_long_for_an_address_works_on_both_sides(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    path = deep / "box.sock"
    before = len(os.listdir("/proc/self/fd"))
    listener = bind(path)
    connect(path, timeout=1).close()
    assert answers(path)
    listener.close()
    assert not path.exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_is_missing_is_an_error_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"nowhere/box\.sock"):
        bind(tmp_path / "nowhere" / "box.sock")
