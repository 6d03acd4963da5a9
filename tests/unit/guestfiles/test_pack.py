"""Directories of the host as archives, and what becomes of them when they are unpacked again."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.archive import BLOCK, LONG, Kind, Record, Window, records
from reconcilers.guestfiles import beneath, pack
from reconcilers.guestfiles.notes import Notes
from reconcilers.guestfiles.unpack import unpack

SECRET = b"a canary outside of the tree"


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "canary").write_bytes(SECRET)
    path = tmp_path / "tree"
    path.mkdir()
    yield path
    assert (tmp_path / "canary").read_bytes() == SECRET


def packed(tree: Path) -> tuple[Path, Notes, list[Record]]:
    """Its archive, which is read once."""
    notes, path = Notes(), tree.parent / "archive"
    root = os.open(tree, os.O_RDONLY)
    archive = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        pack.pack(root, archive, notes)
        size = os.fstat(archive).st_size
        found = list(records(Window(lambda at, count: os.pread(archive, count, at), size)))
    finally:
        os.close(root)
        os.close(archive)
    assert path.stat().st_size % BLOCK == 0
    return path, notes, found


def again(tree: Path) -> tuple[Path, Notes, Notes]:
    """Packed and unpacked beside it."""
    path, told, _ = packed(tree)
    target, notes = tree.parent / "again", Notes()
    target.mkdir()
    root, archive = os.open(target, os.O_RDONLY), os.open(path, os.O_RDONLY)
    try:
        unpack(root, archive, notes)
    finally:
        os.close(root)
        os.close(archive)
    return target, told, notes


def test_a_tree_comes_out_as_it_went_in(tree: Path) -> None:
    (tree / "d/e").mkdir(parents=True)
    contents = {
        "a": b"words",
        "d/empty": b"",
        "d/e/long": os.urandom(LONG * 3 + 5),
        "d/x": b"q" * LONG,
    }
    for name, content in contents.items():
        (tree / name).write_bytes(content)
        os.utime(tree / name, ns=(1, 1_600_000_000_000_000_009))
    os.link(tree / "a", tree / "d/twin")
    (tree / "d/link").symlink_to("../../canary")
    (tree / "d/e").chmod(0o500)
    (tree / "a").chmod(0o640)
    target, told, notes = again(tree)
    for name, content in contents.items():
        assert (target / name).read_bytes() == content
        assert (target / name).stat().st_mtime_ns == 1_600_000_000_000_000_009
    assert (target / "a").stat().st_ino == (target / "d/twin").stat().st_ino
    assert os.readlink(target / "d/link") == "../../canary"
    assert stat.S_IMODE((target / "d/e").stat().st_mode) == 0o500
    assert stat.S_IMODE((target / "a").stat().st_mode) == 0o640
    assert told == notes
    assert told.total == 0


def test_specials_are_listed_and_never_opened(tree: Path) -> None:
    """Case A3: a FIFO that was opened would wait for ever for somebody to write."""
    os.mkfifo(tree / "fifo")
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(os.path.relpath(tree / "socket"))
    (tree / "dangling").symlink_to("nowhere")
    (tree / "loop").symlink_to("loop")
    (tree / "file").write_text("exact")
    (tree / "closed").mkdir(mode=0)
    wanted = {"fifo": "a FIFO, left out", "socket": "a socket, left out"}
    if os.geteuid() == 0:
        os.mknod(tree / "null", stat.S_IFCHR | 0o600, os.makedev(1, 5))
        os.mknod(tree / "disk", stat.S_IFBLK | 0o600, os.makedev(1, 0))
        wanted |= {"null": "a character device, left out", "disk": "a block device, left out"}
    else:
        wanted |= {"closed": "cannot be read, left out"}
    target, told, _ = again(tree)
    bound.close()
    assert dict(told.paths) == wanted
    assert (target / "file").read_text() == "exact"
    assert os.readlink(target / "dangling") == "nowhere"
    assert os.readlink(target / "loop") == "loop"
    assert set(os.listdir(target)) == {"file", "dangling", "loop", "closed"} - wanted.keys()


def test_links_out_of_the_tree_are_not_followed(tree: Path) -> None:
    (tree / "out").symlink_to(tree.parent)
    (tree / "canary").symlink_to(tree.parent / "canary")
    path, _, found = packed(tree)
    assert [record.kind for record in found] == [Kind.SYMLINK, Kind.SYMLINK, Kind.END]
    assert SECRET not in path.read_bytes()


def test_40_gib_with_4_kib_of_data_cost_little(tree: Path) -> None:
    with open(tree / "big", "wb") as file:
        file.truncate(40 << 30)
        file.seek(20 << 30)
        file.write(b"y" * 4096)
    with open(tree / "holes", "wb") as file:
        file.truncate(40 << 30)
    target, told, _ = again(tree)
    assert (tree.parent / "archive").stat().st_blocks * 512 < 1 << 20
    assert told.data == 4096
    for name in ("big", "holes"):
        assert (target / name).stat().st_size == 40 << 30
        assert (target / name).stat().st_blocks * 512 < 1 << 20


def test_odd_names_go_in_byte_for_byte(tree: Path) -> None:
    names = {b"n" * 255, b"a\nb", b"\xff\xfe\x80", b"-rf *", b" ", "é".encode(), "e\u0301".encode()}
    for name in names:
        (tree / os.fsdecode(name)).write_bytes(name)
    target, told, notes = again(tree)
    assert {os.fsencode(name) for name in os.listdir(target)} == names
    assert told.total == 0
    assert [what for _, what in notes.paths] == [
        "is the same name as e\u0301 on systems that ignore case"
    ]


def test_what_the_import_itself_needs_is_left_out(tree: Path) -> None:
    for name in pack.RESERVED:
        (tree / os.fsdecode(name)).mkdir()
    (tree / "d").mkdir()
    (tree / "d/.box-import-new").write_text("allowed, further down")
    target, told, _ = again(tree)
    assert os.listdir(target) == ["d"]
    assert os.listdir(target / "d") == [".box-import-new"]
    assert told.total == 2


def test_attributes_of_users_go_along_and_no_others(tree: Path) -> None:
    (tree / "f").write_text("x")
    try:
        os.setxattr(tree / "f", "user.note", b"kept")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    if os.geteuid() == 0:
        os.setxattr(tree / "f", "trusted.secret", b"not")
    (tree / "f").chmod(0o4755)
    target, told, _ = again(tree)
    assert os.listxattr(target / "f") == ["user.note"]
    assert stat.S_IMODE((target / "f").stat().st_mode) == 0o755
    assert "set-user-ID" in told.paths[0][1]


def test_a_tree_deeper_than_any_path_goes_in(tree: Path) -> None:
    root = os.open(tree, os.O_RDONLY)
    at = os.dup(root)
    for _ in range(40):
        below = beneath.make_folder(at, b"d" * 200)
        os.close(at)
        at = below
    os.close(beneath.make_file(at, b"bottom"))
    os.close(at)
    _, told, found = packed(tree)
    assert sum(record.kind == Kind.FOLDER for record in found) == told.folders == 40
    assert found[40].name == b"bottom"
    beneath.remove_tree(root, b"d" * 200)
    os.close(root)


def shorten(path: Path) -> None:
    os.truncate(path, 10)


def lengthen(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more" * 1000)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [shorten, lengthen, remove])
@pytest.mark.parametrize("size", [5000, 300_000])
def test_a_file_that_changes_while_it_is_read_is_told(
    tree: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], size: int
) -> None:
    """It changes after it was looked at. What comes out is an archive all the same."""
    (tree / "file").write_bytes(b"z" * size)
    (tree / "other").write_text("words")
    real = beneath.open_held

    def and_then(held: int) -> int:
        descriptor = real(held)
        if os.fstat(descriptor).st_size == size:
            change(tree / "file")
        return descriptor

    monkeypatch.setattr(beneath, "open_held", and_then)
    target, told, _ = again(tree)
    gone = change is remove  # which changes nothing of the file that is open
    assert told.paths == ([] if gone else [("file", "changed while it was read")])
    content = (target / "file").read_bytes()
    kept = 10 if change is shorten else size
    assert content == b"z" * kept + bytes(size - kept)
    assert (target / "other").read_text() == "words"


def test_a_log_that_grows_all_the_time_ends(tree: Path) -> None:
    """Case A6."""
    log, ended = tree / "log", threading.Event()
    log.write_bytes(b"line\n")

    def grow() -> None:
        with open(log, "ab", buffering=0) as file:
            while not ended.is_set():
                file.write(b"line\n" * 200)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(3):
            _, _, found = packed(tree)
            assert [record.kind for record in found][0::2][:1] == [Kind.FILE]
            assert found[-1].kind == Kind.END
    finally:
        ended.set()
        writer.join()


def test_a_file_that_became_a_link_is_not_followed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the reading, which reads what was looked at."""
    (tree / "file").write_text("ours")
    real = beneath.look

    def and_then(directory: int, name: bytes) -> tuple[int, os.stat_result]:
        found = real(directory, name)
        (tree / "file").unlink()
        (tree / "file").symlink_to(tree.parent / "canary")
        return found

    monkeypatch.setattr(beneath, "look", and_then)
    path, _, _ = packed(tree)
    assert SECRET not in path.read_bytes()
    assert b"ours" in path.read_bytes()


def test_a_directory_that_became_a_link_is_not_followed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "d").mkdir()
    real = beneath.look

    def and_then(directory: int, name: bytes) -> tuple[int, os.stat_result]:
        found = real(directory, name)
        (tree / "d").rename(tree / "moved")
        (tree / "d").symlink_to(tree.parent)
        return found

    monkeypatch.setattr(beneath, "look", and_then)
    path, _, found = packed(tree)
    assert [record.kind for record in found] == [Kind.FOLDER, Kind.LEAVE, Kind.END]
    assert SECRET not in path.read_bytes()


def test_a_file_longer_than_any_is_left_out() -> None:
    """Other file systems have them; an archive with one would be none."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        (tree / "kept").write_text("kept")
        with open(tree / "long", "wb") as file:
            file.truncate((16 << 40) + 1)
        os.link(tree / "long", tree / "twin")
        target, notes, _ = again(tree)
        assert os.listdir(target) == ["kept"]
    told = "longer than 16 TiB, left out"
    assert notes.paths == [("long", told), ("twin", told)]
