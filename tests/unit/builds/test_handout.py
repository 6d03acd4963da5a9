"""What a guest hands out as its root: taken over exactly, or refused."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from agent.archive import Kind, Record
from reconcilers.builds import handout
from reconcilers.images.tree import BadImage, File, Folder, Symlink
from tests.unit.agent.guest import Guest, compiled


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("handout") / "driver")


@pytest.fixture
def guest(driver: Path, tmp_path: Path) -> Guest:
    return Guest(driver, tmp_path)


def test_the_agents_root_is_taken_over(guest: Guest) -> None:
    root = guest.data
    (root / "bin").mkdir(mode=0o755)
    (root / "bin/tool").write_bytes(b"x" * 100_000)
    (root / "bin/tool").chmod(0o4711)
    os.link(root / "bin/tool", root / "bin/same")
    (root / "bin/link").symlink_to("/etc/../../shadow")
    with open(root / "sparse", "wb") as file:
        file.truncate(40 << 30)
        file.seek(20 << 30)
        file.write(b"middle")
    os.mkfifo(root / "fifo")
    os.setxattr(root / "bin", "user.note", b"kept")
    os.utime(root / "sparse", (7, 7))
    (root / "lost+found").mkdir()
    guest.run("root")
    with open(guest.transfer, "rb") as file:
        found = handout.loaded(file.fileno())
        top = {name: node for name, (node, _) in found.tree.root.children.items()}
        assert sorted(top) == [b"bin", b"lost+found", b"sparse"] and found.devices == 1
        bin_, sparse = top[b"bin"], top[b"sparse"]
        assert isinstance(bin_, Folder) and isinstance(sparse, File)
        assert dict(bin_.xattrs)[b"user.note"] == b"kept"
        inside = {name: node for name, (node, _) in bin_.children.items()}
        tool, link = inside[b"tool"], inside[b"link"]
        assert inside[b"same"] is tool and isinstance(tool, File) and isinstance(link, Symlink)
        assert (tool.mode, tool.uid, link.target) == (0o4711, os.getuid(), b"/etc/../../shadow")
        assert stat.S_IMODE(bin_.mode) == 0o755 and sparse.mtime == 7
        assert sparse.content.size == 40 << 30 and sparse.content.pieces is not None
        ((start, length, at),) = sparse.content.pieces
        assert start <= 20 << 30 < start + length
        held = os.pread(file.fileno(), length, at)
        assert held.strip(b"\0") == b"middle"


def test_what_is_left_out_is_told_by_name(guest: Guest) -> None:
    (guest.data / "run").mkdir()
    for number in range(handout.NAMED_MAX + 4):
        os.mkfifo(guest.data / f"run/f{number:02}\n")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(guest.data, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{here}/a")  # a socket's path is short
        os.close(here)
    guest.run("root")
    told = list[str]()
    with open(guest.transfer, "rb") as file:
        assert handout.loaded(file.fileno(), told.append).devices == handout.NAMED_MAX + 5
    assert sum(line.endswith(" (FIFO)") and "run/f" in line for line in told) >= 19
    assert told[-1] == "left out of the image: 5 more" and len(told) == handout.NAMED_MAX + 1
    assert not any("\n" in line for line in told)


@pytest.mark.parametrize("reason", [5, 6, 7, 8])
def test_a_file_that_would_be_missing_makes_no_image(guest: Guest, reason: int) -> None:
    guest.put_records(
        (Record(Kind.FOLDER, b"d"), b""),
        (Record(Kind.NOTE, b"lost", number=reason), b""),
        (Record(Kind.LEAVE), b""),
        (Record(Kind.END, size=1, number=1), b""),
    )
    with open(guest.transfer, "rb") as file, pytest.raises(BadImage, match='"d/lost"') as caught:
        handout.loaded(file.fileno())
    assert caught.value.fix


def test_the_names_of_whiteouts_are_names_in_a_root(guest: Guest) -> None:
    """It is no layer: a source tree of a container engine has such files, and loses none."""
    (guest.data / "d/.wh.x").mkdir(parents=True)
    for name in ("d/kept", "d/.wh.kept", "d/.wh.", "d/.wh..wh..opq", "d/.wh.x/in", ".wh..wh.aufs"):
        (guest.data / name).write_text(name)
    guest.run("root")
    with open(guest.transfer, "rb") as file:
        paths = {path for path, _ in handout.loaded(file.fileno()).tree.walk()}
    names = {b"kept", b".wh.kept", b".wh.", b".wh..wh..opq", b".wh.x", b".wh.x/in"}
    assert paths == {b"d", b".wh..wh.aufs", *(b"d/" + name for name in names)}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root gives capabilities")
def test_capabilities_are_kept_and_other_systems_labels_are_not(guest: Guest) -> None:
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    path = guest.data / "ping"
    path.write_bytes(b"x")
    os.setxattr(path, "security.capability", capability)
    os.setxattr(path, "trusted.note", b"ours alone")
    guest.run("root")
    with open(guest.transfer, "rb") as file:
        (node, _) = handout.loaded(file.fileno()).tree.root.children[b"ping"]
    assert node.xattrs == ((b"security.capability", capability),)


HOSTILE = {
    "an owner that no system has": [(Record(Kind.FOLDER, b"d", uid=2**32 - 1), b"")],
    "a path that is too long": [(Record(Kind.FOLDER, b"d" * 200), b"") for _ in range(30)],
    "a whiteout of no name": [(Record(Kind.FILE, b".wh."), b"")],
    "a link to a file that became a folder": [
        (Record(Kind.FILE, b"a", number=1), b""),
        (Record(Kind.FOLDER, b"a"), b""),
        (Record(Kind.LEAVE), b""),
        (Record(Kind.HARD, b"b", number=1), b""),
    ],
    "what is no archive": [(Record(Kind.DATA, length=9), b"x" * 9)],
    "one that breaks off": [(Record(Kind.FILE, b"a", size=1 << 40), b"")],
    "more holes than any file has": [
        (Record(Kind.FILE, b"a", size=1 << 30), b""),
        *((Record(Kind.DATA, size=number * 2, length=1), b"x") for number in range(10_001)),
    ],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_lying_guest_makes_no_image(guest: Guest, what: str) -> None:
    guest.put_records(*HOSTILE[what])
    with open(guest.transfer, "rb") as file, pytest.raises(BadImage):
        handout.loaded(file.fileno())


def test_a_name_taken_twice_is_the_last_one_and_leads_nowhere(guest: Guest) -> None:
    """A link, then a folder of the same name with something in it."""
    guest.put_records(
        (Record(Kind.SYMLINK, b"etc", body=b"/tmp"), b""),
        (Record(Kind.FOLDER, b"etc"), b""),
        (Record(Kind.FILE, b"passwd", size=1), b""),
        (Record(Kind.DATA, length=1), b"x"),
        (Record(Kind.LEAVE), b""),
        (Record(Kind.END, size=3, length=1), b""),
    )
    with open(guest.transfer, "rb") as file:
        tree = handout.loaded(file.fileno()).tree
    node, _ = tree.root.children[b"etc"]
    assert isinstance(node, Folder) and list(node.children) == [b"passwd"]
