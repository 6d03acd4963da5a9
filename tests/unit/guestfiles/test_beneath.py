"""Names that a guest chose, on a real file system: nothing outside the tree is read or written."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.guestfiles import beneath
from reconcilers.guestfiles.beneath import UnsafeName
from reconcilers.guestfiles.cursor import WINDOW, Cursor

SECRET = "a canary outside of the tree"
MOMENT = 1_700_000_000_123_456_789


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    path = tmp_path / "canary"
    path.write_text(SECRET)
    path.chmod(0o640)
    return path


@pytest.fixture
def tree(tmp_path: Path, canary: Path) -> Iterator[int]:
    (tmp_path / "tree").mkdir()
    descriptor = os.open(tmp_path / "tree", os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)
    assert canary.read_text() == SECRET
    assert canary.stat().st_nlink == 1
    assert stat.S_IMODE(canary.stat().st_mode) == 0o640


def deep(root: int, levels: int, name: bytes = b"d" * 200) -> None:
    """So many directories, one in the other; their path is longer than any system call takes."""
    at = Cursor(root)
    for _ in range(levels):
        at.enter(name, beneath.make_folder(at.here, name))
    os.close(beneath.make_file(at.here, b"bottom"))
    at.close()


@pytest.mark.parametrize(
    "name", [b"", b".", b"..", b"a/b", b"/etc/passwd", b"../canary", b"a\0b", b"n" * 256]
)
def test_what_is_no_name_in_the_directory_is_refused(tree: int, name: bytes) -> None:
    for act in (beneath.look, beneath.open_folder, beneath.make_folder, beneath.make_file):
        with pytest.raises(UnsafeName):
            act(tree, name)
    with pytest.raises(UnsafeName):
        beneath.make_symlink(tree, name, b"x", 0)
    with pytest.raises(UnsafeName):
        beneath.make_hard_link(tree, name, tree, b"fine")
    with pytest.raises(UnsafeName):
        beneath.make_hard_link(tree, b"fine", tree, name)
    with pytest.raises(UnsafeName):
        beneath.remove_tree(tree, name)


@pytest.mark.parametrize("target", ["../canary", "CANARY", "missing", "self", "."])
def test_a_link_is_never_followed(tree: int, canary: Path, tmp_path: Path, target: str) -> None:
    os.symlink(str(canary) if target == "CANARY" else target, "self", dir_fd=tree)
    with pytest.raises(OSError) as caught:
        beneath.open_folder(tree, b"self")
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
    with pytest.raises(FileExistsError):
        beneath.make_file(tree, b"self")
    with pytest.raises(FileExistsError):
        beneath.make_folder(tree, b"self")
    held, facts = beneath.look(tree, b"self")
    assert stat.S_ISLNK(facts.st_mode)
    assert beneath.target_of(held) == os.fsencode(os.readlink(tmp_path / "tree/self"))
    with pytest.raises(OSError, match="not a regular file"):
        beneath.open_held(held)
    os.close(held)
    beneath.make_hard_link(tree, b"self", tree, b"twin")  # of the link, not of what it leads to
    assert stat.S_ISLNK(os.stat("twin", dir_fd=tree, follow_symlinks=False).st_mode)


def test_two_links_one_behind_the_other_lead_nowhere(tree: int, tmp_path: Path) -> None:
    """`a` is a directory when it is looked at and a link out of the tree when it is used."""
    (tmp_path / "outside").mkdir()
    os.close(beneath.make_folder(tree, b"a"))
    os.rmdir("a", dir_fd=tree)
    os.symlink("b", "a", dir_fd=tree)
    os.symlink("../outside", "b", dir_fd=tree)
    with pytest.raises(OSError):
        beneath.walk(tree, [b"a", b"x"])
    with pytest.raises(OSError):
        beneath.walk(tree, [b"a"])
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
def test_only_a_regular_file_is_opened(tree: int, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tree" / "odd"
    bound = socket.socket(socket.AF_UNIX)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        bound.bind(os.path.relpath(path))
    held, _ = beneath.look(tree, b"odd")  # a FIFO that was opened would wait for a writer
    with pytest.raises(OSError) as caught:
        beneath.open_held(held)
    assert caught.value.errno == errno.EINVAL
    os.close(held)
    bound.close()


@pytest.mark.needs_root
def test_a_device_is_not_opened(tree: int) -> None:
    os.mknod("null", stat.S_IFCHR | 0o600, os.makedev(1, 5), dir_fd=tree)
    held, facts = beneath.look(tree, b"null")
    assert stat.S_ISCHR(facts.st_mode)
    with pytest.raises(OSError) as caught:
        beneath.open_held(held)
    assert caught.value.errno == errno.EINVAL
    os.close(held)


def test_what_is_read_is_what_was_looked_at(tree: int, tmp_path: Path, canary: Path) -> None:
    path = tmp_path / "tree" / "file"
    path.write_text("ours")
    held, _ = beneath.look(tree, b"file")
    path.rename(tmp_path / "tree" / "away")
    path.symlink_to(canary)
    descriptor = beneath.open_held(held)
    assert os.read(descriptor, 100) == b"ours"
    os.close(descriptor)
    os.close(held)


def test_final_modes_give_nobody_more(tree: int) -> None:
    file, folder = beneath.make_file(tree, b"f"), beneath.make_folder(tree, b"d")
    assert stat.S_IMODE(os.fstat(file).st_mode) == 0o600
    beneath.settle_file(file, 0o7755, MOMENT)
    beneath.settle_folder(folder, 0o7755, MOMENT)
    assert stat.S_IMODE(os.fstat(file).st_mode) == 0o755
    assert stat.S_IMODE(os.fstat(folder).st_mode) == 0o1755
    assert os.fstat(file).st_mtime_ns == os.fstat(folder).st_mtime_ns == MOMENT
    os.close(file)
    os.close(folder)


@pytest.mark.parametrize(
    "name", [b"n" * 255, b"a\nb", b"\xff\xfe", b" ", b"-rf", b"*", "e\u0301".encode(), b"\x1b[2J"]
)
def test_names_are_kept_byte_for_byte(tree: int, name: bytes) -> None:
    os.close(beneath.make_file(tree, name))
    assert beneath.names_in(tree) == [name]
    assert "\x1b" not in beneath.shown(name) and "\n" not in beneath.shown(name)


def test_a_tree_deeper_than_any_path_is_made_walked_and_removed(tree: int) -> None:
    levels = 3 * WINDOW
    deep(tree, levels)
    name = b"d" * 200
    at = Cursor(tree)
    for _ in range(levels):
        at.enter(name, beneath.open_folder(at.here, name))
    assert beneath.names_in(at.here) == [b"bottom"]
    below = at.place
    assert len(os.listdir("/proc/self/fd")) < WINDOW + 50
    for level in range(levels, 0, -1):
        os.close(beneath.make_file(at.here, b"%d" % level))  # those that were closed, too
        at.leave()
    with at.at(below) as descriptor:
        assert beneath.names_in(descriptor) == sorted([b"bottom", b"%d" % levels])
    with at.at(at.place) as descriptor:
        assert beneath.names_in(descriptor) == [name]
    at.close()
    beneath.remove_tree(tree, name)
    assert beneath.names_in(tree) == []


def test_removing_follows_nothing_and_minds_no_mode(
    tree: int, tmp_path: Path, canary: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text(SECRET)
    doomed = tmp_path / "tree" / "doomed"
    for path in (doomed, doomed / "a", doomed / "a/b", doomed / "a/b/c"):
        path.mkdir()
        (path / "out").symlink_to(kept)
        (path / "canary").symlink_to(canary)
        os.mkfifo(path / "fifo")
    (doomed / "a/twin").write_text("x")
    (doomed / "a/b/c").chmod(0)
    (doomed / "a/b").chmod(0)
    (doomed / "a").chmod(0o100)
    doomed.chmod(0)
    beneath.remove_tree(tree, b"doomed")
    assert beneath.names_in(tree) == []
    assert (kept / "file").read_text() == SECRET


def test_removing_a_link_leaves_what_it_leads_to(tree: int, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    beneath.remove_tree(tree, b"link")
    assert (tmp_path / "kept").is_dir()
    with pytest.raises(FileNotFoundError):
        beneath.remove_tree(tree, b"link")


def test_a_removal_that_was_cut_short_is_finished(tree: int) -> None:
    """What it has moved to the top of the tree is what the next one finds there."""
    deep(tree, 5, b"d")
    top = beneath.open_folder(tree, b"d")
    below = beneath.open_folder(top, b"d")
    os.rename("d", ".1-moved", src_dir_fd=below, dst_dir_fd=top)
    os.close(below)
    os.close(top)
    beneath.remove_tree(tree, b"d")
    assert beneath.names_in(tree) == []
