"""Changes of a fork told, and brought into a parent that went its own way: the agent's C code, on
directories of the host and against a model, under sanitizers.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path

import pytest

from reconcilers.guestfiles.changes import Entry, LeftOut
from tests.unit.agent.guest import Guest
from tests.unit.agent.merging import Told, changes, prepared, remove

# CAP_NET_RAW, permitted and effective: struct vfs_cap_data, revision 2.
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
Seen = dict[str, tuple[object, ...]]


def seen(tree: Path) -> Seen:
    """Everything that counts, by path: type, mode, and what it holds."""
    found: Seen = {}
    for folder, folders, files in os.walk(tree):
        for name in folders + files:
            path = Path(folder, name)
            facts = path.lstat()
            content: object = None
            if stat.S_ISREG(facts.st_mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(facts.st_mode):
                content = os.readlink(path)
            mode = 0 if stat.S_ISLNK(facts.st_mode) else stat.S_IMODE(facts.st_mode)
            kind = stat.S_IFMT(facts.st_mode)
            found[str(path.relative_to(tree))] = (kind, mode, content)
    return found


def is_folder(found: Seen, path: str) -> bool:
    return path in found and found[path][0] == stat.S_IFDIR


def above(path: str) -> list[str]:
    return [str(each) for each in list(Path(path).parents)[:-1]]


def make(tree: Path, chance: random.Random) -> None:
    folders = [tree]
    for number in range(30):
        path = chance.choice(folders) / f"n{number}"
        kind = chance.choice(["folder", "folder", "file", "file", "link"])
        if kind == "folder":
            path.mkdir()
            folders.append(path)
        elif kind == "link":
            path.symlink_to(f"to{chance.randrange(3)}")
        else:
            path.write_bytes(bytes([chance.randrange(3)]) * chance.choice([0, 5, 70_000]))


def change(tree: Path, chance: random.Random, steps: int) -> None:
    """A few edits, from few enough that two sides make the same one now and then."""
    for _ in range(steps):
        everything = sorted(tree.rglob("*"))
        if not everything:
            return
        path = chance.choice(everything)
        edit = chance.choice(["write", "write", "remove", "mode", "new", "turn", "move"])
        folder = path if path.is_dir() and not path.is_symlink() else path.parent
        if edit == "write" and path.is_file() and not path.is_symlink():
            path.write_bytes(bytes([chance.randrange(2)]) * 5)
        elif edit == "remove":
            remove(path)
        elif edit == "mode" and not path.is_symlink():
            path.chmod(chance.choice([0o700, 0o755]))
        elif edit == "new":
            new = folder / f"new{chance.randrange(4)}"
            if not new.exists() and not new.is_symlink():
                new.write_bytes(bytes([chance.randrange(2)]))
        elif edit == "turn":
            remove(path)
            if chance.random() < 0.5:
                path.mkdir()
                (path / "in").write_text("x")
            else:
                path.symlink_to("turned")
        elif edit == "move" and not os.path.lexists(tree / "moved"):
            path.rename(tree / "moved")


def expected(base: Seen, fork: Seen, parent: Seen) -> tuple[set[str], Seen]:
    """The paths that are in conflict, and what the parent becomes where none are."""
    conflicts: set[str] = set()
    merged = dict(parent)
    for path in base.keys() | fork.keys() | parent.keys():
        was, ours, theirs = base.get(path), parent.get(path), fork.get(path)
        gone = [each for each in [path, *above(path)] if is_folder(base, each)]
        removed = any(not is_folder(fork, each) for each in gone)
        if theirs == was:
            # What the parent has put into a directory that is gone.
            if removed and ours is not None:
                conflicts.add(path)
            continue
        lost = theirs is not None and any(
            each in base and is_folder(fork, each) and not is_folder(parent, each)
            and parent.get(each) != base[each]
            for each in above(path)
        )  # fmt: skip
        if ours not in (was, theirs) or lost:
            if not (theirs is None and ours is None):
                conflicts.add(path)
            continue
        if theirs is None:
            merged.pop(path, None)
        else:
            merged[path] = theirs
    return conflicts, merged


@pytest.mark.parametrize("seed", range(40))
def test_a_merge_is_what_the_model_says(guest: Guest, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    base, fork = tmp_path / "base", tmp_path / "fork"
    base.mkdir()
    make(base, chance)
    shutil.copytree(base, fork, symlinks=True)
    guest.data.rmdir()
    shutil.copytree(base, guest.data, symlinks=True)
    change(fork, chance, 8)
    change(guest.data, chance, chance.choice([0, 2, 8]))
    before, parent_before, fork_before = seen(base), seen(guest.data), seen(fork)

    told = changes(guest, fork)
    assert (seen(base), seen(fork)) == (before, fork_before)
    found = {os.fsdecode(each.path): each for each in told if isinstance(each, Entry)}
    differing = {
        path for path in before.keys() | fork_before.keys()
        if before.get(path) != fork_before.get(path)
    }  # fmt: skip
    assert found.keys() == differing
    for path, entry in found.items():
        letter = "M" if path in before and path in fork_before else "DA"[path in fork_before]
        if letter == "M" and before[path][0] != fork_before[path][0]:
            letter = "T"
        assert entry.letter == letter, path

    conflicts, merged = expected(before, fork_before, parent_before)
    dry = Told.read(guest.told("merge", "dry"))
    assert dry.conflicts.keys() == conflicts
    assert seen(guest.data) == parent_before
    real = Told.read(guest.told("merge", "none"))
    assert real == dry
    if conflicts:
        assert seen(guest.data) == parent_before
        guest.told("merge", "theirs")
        after = seen(guest.data)
        for path in differing:
            assert after.get(path) == fork_before.get(path), path
    else:
        assert seen(guest.data) == merged
        again = Told.read(guest.told("merge", "none"))
        assert again == Told(0, {}) or not differing
        assert seen(guest.data) == merged


def test_all_that_a_file_has_is_carried_over(guest: Guest, tmp_path: Path) -> None:
    base, fork = prepared(guest, tmp_path, "f", "d/g")
    name = os.fsencode(fork) + b"/d/a\n\xff" + b"x" * 252
    with open(name, "wb") as file:
        file.write(b"words")
    os.setxattr(name, "user.note", b"kept")
    os.utime(name, ns=(1, 1_000_000_007))
    os.chmod(name, 0o4750)
    os.setxattr(fork / "f", "user.note", b"new")
    (fork / "d").chmod(0o1777)
    os.setxattr(fork / "d", "user.d", b"1")
    os.setxattr(guest.data / "d", "user.d", b"2")
    os.setxattr(base / "d", "user.d", b"2")
    with (fork / "sparse").open("wb") as sparse:
        sparse.truncate(40 << 30)
        sparse.seek(5 << 30)
        sparse.write(b"in the middle")
    if os.geteuid() == 0:
        os.chown(name, 1234, 99)
        os.chmod(name, 0o4750)
        os.lchown(fork / "f", 7, 7)
        os.setxattr(name, "security.capability", CAPABILITY)
    fork.chmod(0o711)
    told = {each.path: each for each in changes(guest, fork) if isinstance(each, Entry)}
    assert told[b"."].what == ("mode",) and told[b"."].letter == "M"
    assert told[b"d"].what == ("mode", "attributes")
    assert Told.read(guest.told("merge", "none")).conflicts == {}
    made = os.fsencode(guest.data) + b"/d/" + os.path.basename(name)
    facts = os.stat(made)
    assert stat.S_IMODE(facts.st_mode) == 0o4750 and facts.st_mtime_ns == 1_000_000_007
    assert os.getxattr(made, "user.note") == b"kept"
    assert os.getxattr(guest.data / "f", "user.note") == b"new"
    assert os.getxattr(guest.data / "d", "user.d") == b"1"
    assert stat.S_IMODE((guest.data / "d").stat().st_mode) == 0o1777
    assert stat.S_IMODE(guest.data.stat().st_mode) == 0o711
    sparse_facts = (guest.data / "sparse").stat()
    assert sparse_facts.st_size == 40 << 30 and sparse_facts.st_blocks * 512 < 1 << 20
    if os.geteuid() == 0:
        assert (facts.st_uid, facts.st_gid) == (1234, 99)
        assert (guest.data / "f").stat().st_uid == 7
        assert os.getxattr(made, "security.capability") == CAPABILITY
    # with the names that are left over nothing is kept back
    assert sorted(os.listdir(guest.data)) == ["d", "f", "sparse"]


def test_names_of_one_file_stay_names_of_one_file(guest: Guest, tmp_path: Path) -> None:
    base, fork = prepared(guest, tmp_path, "alone", "one")
    for tree in (base, fork, guest.data):
        os.link(tree / "one", tree / "two")
        os.link(tree / "one", tree / "three")
    (fork / "d").mkdir()
    os.link(fork / "alone", fork / "d/twin")  # of a file that is otherwise as it was
    (fork / "three").rename(fork / "d/third")
    with (fork / "one").open("a") as file:
        file.write("er")
    told = {each.path: each for each in changes(guest, fork) if isinstance(each, Entry)}
    assert told[b"alone"].what == ("links",) and told[b"d/twin"].letter == "A"
    assert told[b"one"].what == told[b"two"].what == ("content",)
    assert told[b"three"].letter == "D"
    assert Told.read(guest.told("merge", "none")).conflicts == {}
    inode = {name: (guest.data / name).stat().st_ino for name in
             ("alone", "d/twin", "one", "two", "d/third")}  # fmt: skip
    assert inode["alone"] == inode["d/twin"] != inode["one"]
    assert inode["one"] == inode["two"] == inode["d/third"]
    assert (guest.data / "d/third").read_text() == "older"
    assert not (guest.data / "three").exists()


def test_specials_are_told_and_never_opened(guest: Guest, tmp_path: Path) -> None:
    _base, fork = prepared(guest, tmp_path, "was", "d/gone")
    (fork / "was").unlink()
    os.mkfifo(fork / "was")
    shutil.rmtree(fork / "d")
    os.mkfifo(fork / "d")
    (fork / "lost+found").mkdir()
    told = changes(guest, fork)
    assert [(each.path, each.why) for each in told if isinstance(each, LeftOut)] == [
        (b"d", "a FIFO, left out"),
        (b"was", "a FIFO, left out"),
    ] or len(told) == 4
    gone = {each.path: each.letter for each in told if isinstance(each, Entry)}
    assert gone == {b"d": "D", b"d/gone": "D"}
    assert Told.read(guest.told("merge", "none")) == Told(2, {})
    assert sorted(os.listdir(guest.data)) == ["was"]
    assert (guest.data / "was").read_text() == "old"


def test_no_link_of_either_side_is_followed(guest: Guest, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_text("untouched")
    _base, fork = prepared(guest, tmp_path, "d/f", "e/f")
    (fork / "d/f").write_text("new")
    (fork / "d/in").write_text("new")
    shutil.rmtree(guest.data / "d")
    (guest.data / "d").symlink_to(outside)
    changes(guest, fork)
    assert Told.read(guest.told("merge", "dry")).conflicts == {"d/f": "MD", "d/in": "AD"}
    guest.told("merge", "theirs")
    assert (guest.data / "d/f").read_text() == "new" and not (guest.data / "d").is_symlink()
    assert os.listdir(outside) == ["canary"]


def test_a_tree_deeper_than_any_path_is_compared_and_merged(guest: Guest, tmp_path: Path) -> None:
    from reconcilers.guestfiles import beneath
    from reconcilers.guestfiles.cursor import Cursor

    _base, fork = prepared(guest, tmp_path)
    root, name = os.open(fork, os.O_RDONLY), b"d" * 200
    at = Cursor(root)
    for _ in range(300):
        at.enter(name, beneath.make_folder(at.here, name))
    os.close(beneath.make_file(at.here, b"bottom"))
    at.close()
    told = changes(guest, fork)
    assert len(told) == 301 and len(told[-1].path) == 300 * 201 + 6
    assert Told.read(guest.told("merge", "none")) == Told(301, {})
    for tree in (fork, guest.data):
        top = os.open(tree, os.O_RDONLY)
        assert beneath.names_in(top) == [name]
        beneath.remove_tree(top, name)
        os.close(top)
    os.close(root)
