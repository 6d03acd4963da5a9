"""The agent's C code that reads and writes /data, on a directory of the host, under sanitizers."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from agent.archive import Kind, Record
from reconcilers.guestfiles import beneath
from reconcilers.guestfiles.cursor import Cursor
from tests.unit.agent.guest import Guest


def make(tree: Path, seed: int) -> None:
    """A tree with a bit of everything."""
    chance = random.Random(seed)
    folders = [tree]
    for number in range(40):
        parent = chance.choice(folders)
        kind = chance.choice(["folder", "file", "file", "long", "sparse", "link", "hard"])
        path = parent / f"{kind}{number}"
        if kind == "folder":
            path.mkdir()
            folders.append(path)
        elif kind == "link":
            path.symlink_to(chance.choice(["../..", "/etc/passwd", "nowhere", "x" * 200]))
        elif kind == "hard":
            (parent / f"first{number}").write_bytes(chance.randbytes(50))
            os.link(parent / f"first{number}", path)
        elif kind == "sparse":
            with path.open("wb") as file:
                file.truncate(chance.randrange(1 << 24))
                for _ in range(3):
                    file.seek(chance.randrange(1 << 23))
                    file.write(chance.randbytes(chance.randrange(200_000)))
        else:
            most = 3_000_000 if kind == "long" else 70_000
            path.write_bytes(chance.randbytes(chance.randrange(most)))
        if kind in ("file", "long"):
            path.chmod(chance.randrange(0o1000) | 0o400)
    for each in tree.rglob("*"):
        os.utime(each, ns=(1, chance.randrange(1 << 60)), follow_symlinks=False)


def seen(tree: Path) -> dict[str, tuple[object, ...]]:
    """Everything that can be compared, hard links by who shares an inode."""
    found: dict[str, tuple[object, ...]] = {}
    first: dict[int, str] = {}
    for path in sorted(tree.rglob("*")):
        facts, name = path.lstat(), str(path.relative_to(tree))
        content: object = None
        if stat.S_ISREG(facts.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(facts.st_mode):
            content = os.readlink(path)
        same = first.setdefault(facts.st_ino, name)
        found[name] = (facts.st_mode, facts.st_mtime_ns, facts.st_nlink, same, content)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_what_is_exported_is_what_is_there(guest: Guest, seed: int) -> None:
    make(guest.data, seed)
    before = seen(guest.data)
    target, notes = guest.exported()
    assert seen(target) == before == seen(guest.data)
    assert notes.total == 0
    blocks = [sum(p.lstat().st_blocks for p in t.rglob("*")) for t in (guest.data, target)]
    assert blocks[1] <= blocks[0] * 1.1 + 64


@pytest.mark.parametrize("seed", range(6))
def test_what_is_imported_is_what_was_given(guest: Guest, tmp_path: Path, seed: int) -> None:
    (tmp_path / "tree").mkdir()
    make(tmp_path / "tree", seed)
    guest.put(tmp_path / "tree")
    guest.run("import")
    assert seen(guest.data) == seen(tmp_path / "tree")


def test_attributes_and_kinds(guest: Guest) -> None:
    (guest.data / "f").write_text("x")
    os.setxattr(guest.data / "f", "user.note", b"kept")
    os.mkfifo(guest.data / "fifo")
    (guest.data / "lost+found").mkdir()
    (guest.data / "d/lost+found").mkdir(parents=True)
    (guest.data / ".box-import-new").write_text("not ours to tell")
    target, notes = guest.exported()
    assert os.getxattr(target / "f", "user.note") == b"kept"
    assert sorted(os.listdir(target)) == ["d", "f"]
    assert os.listdir(target / "d") == ["lost+found"]
    assert notes.paths == [("fifo", "a FIFO, left out")]
    os.unlink(guest.data / ".box-import-new")
    for each in ("f", "fifo"):
        os.unlink(guest.data / each)
    guest.put(target)
    guest.run("import")
    assert os.getxattr(guest.data / "f", "user.note") == b"kept"


def test_a_disk_that_is_too_short_is_refused(guest: Guest) -> None:
    (guest.data / "f").write_bytes(os.urandom(3 << 20))
    os.truncate(guest.transfer, 1 << 20)
    assert "No space left" in guest.run("export", status=127)


def test_a_tree_deeper_than_any_path_goes_both_ways(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    root, name = os.open(tmp_path / "tree", os.O_RDONLY), b"d" * 200
    at = Cursor(root)
    for _ in range(600):
        at.enter(name, beneath.make_folder(at.here, name))
    os.close(beneath.make_file(at.here, b"bottom"))
    at.close()
    guest.put(tmp_path / "tree")
    guest.run("import")
    guest.run("cut", "0", status=9)  # it is merged into the first, all the way down
    guest.run("recover")
    assert [name for name in os.listdir(guest.data) if name.startswith(".")] == []
    target, notes = guest.exported()
    assert (notes.folders, notes.files) == (600, 1)
    for tree in (guest.data, target, tmp_path / "tree"):
        top = os.open(tree, os.O_RDONLY)
        assert beneath.names_in(top) == [name]
        beneath.remove_tree(top, name)
        os.close(top)
    os.close(root)


OLD = {"same": "old", "d/kept": "old", "d/e/both": "old", "own": "old", "was-link": "old"}
NEW = {"same": "new", "d/new": "new", "d/e/both": "new", "e/f/g": "new", "h": "new"}


def prepared(guest: Guest, tmp_path: Path) -> dict[str, str]:
    """/data holds OLD, the archive NEW; what both together are."""
    for tree, files in ((guest.data, OLD), (tmp_path / "tree", NEW)):
        for name, content in files.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(content)
    if not (tmp_path / "tree/was-link").is_symlink():
        (tmp_path / "tree/was-link").symlink_to("h")
    (guest.data / "links").symlink_to("d")
    guest.put(tmp_path / "tree")
    return {**OLD, **NEW, "was-link": "new"}


def contents(tree: Path) -> dict[str, str]:
    return {
        str(path.relative_to(tree)): path.read_text()
        for path in tree.rglob("*")
        if path.is_file() and path.name != "links"
    }


def test_an_import_is_merged(guest: Guest, tmp_path: Path) -> None:
    both = prepared(guest, tmp_path)
    (tmp_path / "tree/d").chmod(0o711)
    guest.put(tmp_path / "tree")
    guest.run("import")
    assert contents(guest.data) == both
    assert (guest.data / "was-link").is_symlink() and (guest.data / "links").is_symlink()
    assert stat.S_IMODE((guest.data / "d").stat().st_mode) == 0o711
    assert not [name for name in os.listdir(guest.data) if name.startswith(".")]


@pytest.mark.parametrize("name", ["same", "d/e", "links"])
def test_what_is_in_the_way_refuses_all_of_it(guest: Guest, tmp_path: Path, name: str) -> None:
    prepared(guest, tmp_path)
    before = contents(guest.data)
    path = tmp_path / "tree" / name
    if path.is_file():
        path.unlink()
        path.mkdir()
    elif path.is_dir():
        (path / "both").unlink()
        path.rmdir()
        path.write_text("a file over a directory")
    else:
        path.mkdir()  # over a link, which is not followed
    guest.put(tmp_path / "tree")
    assert "directory" in guest.run("import", status=127)
    assert contents(guest.data) == before
    assert not [each for each in os.listdir(guest.data) if each.startswith(".")]


def test_an_import_that_stops_at_any_rename_is_finished_by_the_next_start(
    guest: Guest, tmp_path: Path
) -> None:
    both = prepared(guest, tmp_path)
    for number in range(100):
        shutil.rmtree(guest.data)
        guest.data.mkdir()
        prepared(guest, tmp_path)
        done = subprocess.run(
            [guest.driver, "cut", str(number)], cwd=guest.folder, capture_output=True, timeout=60
        )
        assert done.returncode in (0, 9), done
        guest.run("recover")
        assert contents(guest.data) == both, number
        assert not [each for each in os.listdir(guest.data) if each.startswith(".")]
        if done.returncode == 0:
            return
    raise AssertionError("it never came to its end")


def test_an_import_that_stops_before_it_is_whole_is_removed_by_the_next_start(
    guest: Guest, tmp_path: Path
) -> None:
    prepared(guest, tmp_path)
    left = guest.data / ".box-import-new"
    (left / "tree/d/e/f").mkdir(parents=True)
    (left / "tree/d/same").write_text("half")
    (left / "links").mkdir()
    (left / "tree/d/out").symlink_to(tmp_path)
    before = {name: text for name, text in contents(guest.data).items() if not name.startswith(".")}
    guest.run("recover")
    assert contents(guest.data) == before
    assert (tmp_path / "tree/h").exists()


FILE = Record(Kind.FILE, b"f", 0o644, 5)
DATA = Record(Kind.DATA, length=5)
END = Record(Kind.END, size=1, length=5)


@pytest.mark.parametrize(
    "parts",
    [
        [(FILE, b""), (DATA, b"words")],
        [(FILE, b""), (DATA, b"words"), (END._replace(size=2), b"")],
        [(FILE, b""), (DATA, b"words"), (END._replace(length=4), b"")],
        [(FILE, b""), (DATA._replace(size=1), b"words"), (END, b"")],
        [(DATA, b"words"), (END, b"")],
        [(Record(Kind.LEAVE), b""), (Record(Kind.END), b"")],
        [(Record(Kind.FOLDER, b"d"), b""), (Record(Kind.END, size=1), b"")],
        [(Record(Kind.FILE, b".."), b""), (Record(Kind.END, size=1), b"")],
        [(Record(Kind.FILE, b"a/b"), b""), (Record(Kind.END, size=1), b"")],
        [(Record(Kind.HARD, b"h", number=1), b""), (Record(Kind.END, size=1), b"")],
        [(FILE._replace(number=2), b""), (DATA, b"words"), (END, b"")],
        [(Record(Kind.FILE, b"f", body=b"\5\0\0\0"), b""), (Record(Kind.END, size=1), b"")],
        [(Record(77), b"")],
        [],
    ],
)
def test_a_malformed_archive_changes_nothing(
    guest: Guest, parts: list[tuple[Record, bytes]]
) -> None:
    (guest.data / "kept").write_text("kept")
    guest.put_records(*parts)
    assert "malformed" in guest.run("import", status=127)
    assert os.listdir(guest.data) == ["kept"]


def test_the_same_name_twice_is_refused(guest: Guest) -> None:
    guest.put_records((FILE, b""), (FILE, b""), (Record(Kind.END, size=2), b""))
    assert "exists" in guest.run("import", status=127)
    assert os.listdir(guest.data) == []
