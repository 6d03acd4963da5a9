"""A tree as a hostile guest leaves it, made for real, and what of it may come out on a host.

`tests/vm/hostile_tree.c` makes it: on the host as a program, or in a guest. Beside it lies a canary
that is named by its links: nobody may open, change or link it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from reconcilers.guestfiles import beneath

SECRET = "a canary outside of the tree"
SOURCE = Path(__file__).parent / "vm" / "hostile_tree.c"
LEVELS = 30  # as there
_FOUND = 0x27  # inotify(7): IN_ACCESS, IN_MODIFY, IN_ATTRIB, IN_OPEN
LINKS = {
    "up": "../../../../../../..",
    "step1": "step2",
    "step2": "up/etc",
    "loop": "loop",
    "dangling": "nowhere",
}
SPECIALS = {"fifo": "a FIFO", "socket": "a socket"}
DEVICES = {"character": "a character device", "block": "a block device"}
NAMES = {
    b"n" * 255: "long\n",
    b"a\nb": "newline\n",
    b"\xff\xfe": "no UTF-8\n",
    b"\x1b[2J": "escape\n",
    b"Readme": "lower\n",
    b"README": "upper\n",
    "\u00e9".encode(): "composed\n",
    "e\u0301".encode(): "decomposed\n",
}


@cache
def _program() -> bytes:
    with TemporaryDirectory(prefix="boxtest-") as scratch:
        binary = Path(scratch, "made")
        flags = ["-O1", "-static", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *flags, "-o", binary, SOURCE], check=True, timeout=60)
        return binary.read_bytes()


def program(path: Path) -> Path:
    """The program that makes the tree in its working directory; static, so a guest runs it too."""
    path.write_bytes(_program())
    path.chmod(0o755)
    return path


def make(folder: Path, canary: Path, *, small: bool = False, become: tuple[str, ...] = ()) -> None:
    """The tree in a new directory `folder`, by who the words `become` make of us."""
    binary = program(folder.with_name("make-hostile"))
    command = [*become, str(binary), str(canary), *(["small"] if small else [])]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    binary.unlink()


@contextlib.contextmanager
def guarded(path: Path) -> Iterator[Path]:
    """A canary at `path`. Afterwards nobody has opened, changed or linked it."""
    path.write_text(SECRET)
    path.chmod(0o644)
    before = path.stat()
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert libc.inotify_add_watch(watch, os.fsencode(path), _FOUND) >= 0
    try:
        yield path
        after = path.stat()
        with contextlib.suppress(BlockingIOError):
            raise AssertionError(f"somebody touched the canary: {os.read(watch, 4096)!r}")
        assert (after.st_mode, after.st_nlink) == (before.st_mode, before.st_nlink)
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
        assert path.read_text() == SECRET
    finally:
        os.close(watch)


def check(folder: Path, canary: Path, owner: int, *, small: bool = False) -> None:
    """What came out of a transfer of the tree: nothing but what the rules let through."""
    assert (folder / "plain").read_text() == "exact\n"
    assert (folder / "plain").stat().st_ino == (folder / "twin").stat().st_ino
    links = {name: os.readlink(folder / name) for name in LINKS}
    assert links == LINKS
    for name in ("absolute", "twin-of-link"):
        assert os.readlink(folder / name) == str(canary)
    found = {os.fsencode(name) for name in os.listdir(folder)}
    assert not found & {os.fsencode(name) for name in (*SPECIALS, *DEVICES)}
    for odd, words in NAMES.items():
        assert (folder / os.fsdecode(odd)).read_text() == words
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("setuid", "setgid")}
    assert modes == {"setuid": 0o755, "setgid": 0o755}
    assert set(os.listxattr(folder / "capable")) <= {"user.note"}
    for path in folder.iterdir():
        facts = path.lstat()
        assert facts.st_uid == owner, path
        assert not stat.S_ISREG(facts.st_mode) or not facts.st_mode & 0o7000, path
        assert stat.S_IFMT(facts.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), path
    if not small:
        facts = (folder / "sparse").stat()
        assert facts.st_size == 40 << 30
        assert facts.st_blocks * 512 <= 1 << 20
        _check_depth(folder)


def _check_depth(folder: Path) -> None:
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        below = beneath.walk(root, [b"d" * 200] * LEVELS)
        assert beneath.names_in(below) == [b"bottom", b"link"]
        assert os.readlink("link", dir_fd=below) == "/etc/passwd"
        os.close(below)
    finally:
        os.close(root)


def check_told(told: dict[str, str], *, devices: bool) -> None:
    """Each name that was left out or changed is listed with its reason."""
    for name, what in {**SPECIALS, **(DEVICES if devices else {})}.items():
        assert told[name].startswith(f"{what}, left out"), told
    for name in ("setuid", "setgid"):
        assert "set-user-ID" in told[name], told


def remove(folder: Path) -> None:
    """Also what is deeper than a path can say."""
    parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        beneath.remove_tree(parent, os.fsencode(folder.name))
    finally:
        os.close(parent)
