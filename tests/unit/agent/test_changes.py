"""Changes of a fork told, and brought into a parent that went its own way: the agent's C code, on
directories of the host and against a model, under sanitizers.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.archive import Change, Kind, Record
from reconcilers.guestfiles.changes import Entry, LeftOut, listed
from tests import hostile
from tests.unit.agent.guest import Guest

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


@dataclass
class Told:
    """What MERGE says: how many changes there are to take, and the conflicts."""

    taken: int
    conflicts: dict[str, str]

    @classmethod
    def read(cls, raw: bytes) -> Told:
        head, *rest = raw.split(b"\0")
        assert rest[-1] == b"" and head[:1] == b"="
        taken, count = head[1:].split()
        conflicts = {os.fsdecode(each[3:]): each[:2].decode() for each in rest[:-1]}
        assert all(each[2:3] == b"/" for each in rest[:-1]) and int(count) == len(rest) - 1
        return cls(int(taken), conflicts)


def changes(guest: Guest, fork: Path) -> list[Entry | LeftOut]:
    """What differs in `fork` from `base`."""
    parent = guest.folder / "parent"
    guest.data.rename(parent)
    fork.rename(guest.data)
    guest.run("changes", "1")
    guest.data.rename(fork)
    parent.rename(guest.data)
    with guest.transfer.open("rb") as file:
        return list(listed(file.fileno()))


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


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


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


def prepared(guest: Guest, tmp_path: Path, *names: str) -> tuple[Path, Path]:
    base, fork = tmp_path / "base", tmp_path / "fork"
    for tree in (base, fork, guest.data):
        tree.mkdir(exist_ok=True)
        for name in names:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text("old")
    return base, fork


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


FILE = Record(Kind.FILE, b"f", 0o644, 5, change=Change.ADDED)
DATA = Record(Kind.DATA, length=5)
END = Record(Kind.END, size=1, length=5)


@pytest.mark.parametrize(
    "parts",
    [
        [(FILE, b""), (DATA, b"words")],
        [(FILE._replace(change=0), b""), (DATA, b"words"), (END, b"")],
        [(FILE, b""), (DATA._replace(size=1), b"words"), (END, b"")],
        [(FILE._replace(name=b".."), b""), (END, b"")],
        [(Record(Kind.HARD, b"h", number=1, change=1), b""), (Record(Kind.END, size=1), b"")],
        [(Record(Kind.GONE_FOLDER, b"d"), b""), (FILE, b""), (DATA, b"words"), (END, b"")],
        [(Record(Kind.GONE_FOLDER, b"d"), b""), (Record(Kind.END, size=1), b"")],
        [(Record(Kind.PASS, b"d"), b""), (Record(Kind.END), b"")],
        [(Record(Kind.LEAVE), b""), (Record(Kind.END), b"")],
        [(FILE, b""), (Record(Kind.TOP, change=4), b""), (Record(Kind.END, size=2), b"")],
        [(FILE._replace(name=b".box-import-ready"), b""), (DATA, b"words"), (END, b"")],
        [(Record(Kind.GONE, b".box-import-new"), b""), (Record(Kind.END, size=1), b"")],
        [(Record(99), b"")],
        [],
    ],
)
def test_malformed_changes_change_nothing(
    guest: Guest, tmp_path: Path, parts: list[tuple[Record, bytes]]
) -> None:
    prepared(guest, tmp_path, "kept")
    guest.put_records(*parts, changes=True)
    assert "malformed" in guest.run("merge", "theirs", status=127)
    assert os.listdir(guest.data) == ["kept"]


def test_a_plain_archive_is_none_of_changes(guest: Guest, tmp_path: Path) -> None:
    prepared(guest, tmp_path, "kept")
    guest.put(guest.data)
    assert "malformed" in guest.run("merge", "none", status=127)


def test_a_hostile_tree_is_told_and_applied_beside_a_canary(guest: Guest, tmp_path: Path) -> None:
    _base, fork = prepared(guest, tmp_path)
    with hostile.guarded(tmp_path / "canary") as canary:
        hostile.make(fork, canary)
        told = changes(guest, fork)
        left_out = {os.fsdecode(each.path): each.why for each in told if isinstance(each, LeftOut)}
        devices = hostile.DEVICES if os.geteuid() == 0 else {}
        for name, what in {**hostile.SPECIALS, **devices}.items():
            assert left_out[name] == f"{what}, left out"
        assert guest.transfer.stat().st_blocks * 512 < 2 << 20, "holes take no room"
        found = Told.read(guest.told("merge", "none"))
        assert found.conflicts == {} and found.taken == len(told) - len(left_out)
    for name, leads in hostile.LINKS.items():
        assert os.readlink(guest.data / name) == leads
    for odd, words in hostile.NAMES.items():
        assert (guest.data / os.fsdecode(odd)).read_text() == words
    assert (guest.data / "plain").stat().st_ino == (guest.data / "twin").stat().st_ino
    assert (guest.data / "sparse").stat().st_size == 40 << 30
    # It stays in a guest, so it stays what it was.
    assert stat.S_IMODE((guest.data / "setuid").stat().st_mode) & 0o4000
    hostile._check_depth(guest.data)
    for path in (fork, guest.data):
        hostile.remove(path)


@pytest.mark.timeout(600)
def test_changes_with_wrong_bytes_are_refused_or_stay_within(guest: Guest, tmp_path: Path) -> None:
    """The list comes from a machine that a fork may have taken over."""
    chance = random.Random(os.environ.get("BOX_FUZZ_SEED", "20261130"))
    _base, fork = prepared(guest, tmp_path, "f", "d/g", "d/e/h", "gone/i")
    shutil.rmtree(fork / "gone")
    (fork / "d/g").write_text("new")
    os.link(fork / "f", fork / "d/twin")
    os.setxattr(fork / "d/e/h", "user.note", b"x")
    (fork / "link").symlink_to("../../outside")
    changes(guest, fork)
    with guest.transfer.open("rb") as file:
        whole = file.read(8192)
    used = len(whole.rstrip(b"\0")) + 8
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    beside = sorted(os.listdir(tmp_path))
    kept = tmp_path / "kept"
    guest.data.rename(kept)
    for _ in range(int(os.environ.get("BOX_FUZZ_ROUNDS", "150"))):
        shutil.copytree(kept, guest.data, symlinks=True)
        made = bytearray(whole)
        for _ in range(chance.choice([1, 1, 2, 5])):
            made[chance.randrange(16, used)] = chance.choice([0, 1, 2, 9, 10, 11, 0xFF, 0x2F])
        guest.transfer.write_bytes(made)
        done = subprocess.run(
            [guest.driver, "merge", "theirs"], cwd=guest.folder, capture_output=True, timeout=60
        )
        assert done.returncode in (0, 127), (bytes(made[:used]).hex(), done.stderr)
        if done.returncode == 0:
            Told.read(done.stdout)
        remove(guest.data)
        assert outside.read_text() == "untouched"
    kept.rename(guest.data)
    assert sorted(os.listdir(tmp_path)) == beside
