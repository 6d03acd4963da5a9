"""A folder of the host as a tree: its names and facts first, the files one by one when written.

Nothing in it is followed: every open is beneath the folder's own descriptor and refuses links. What
changes between the look and the end makes no image.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from dataclasses import dataclass
from typing import NoReturn

from reconcilers.confinement import syscalls
from reconcilers.images.layers import ENTRIES_MAX, NAME_MAX, PATH_MAX, TEXT_MAX, shown
from reconcilers.images.tree import BadImage, Content, Fifo, File, Folder, Node, Symlink, Tree
from reconcilers.process import GivenUp
from specs.errors import HostError

RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_ATTRIBUTES = ("security.capability", "user.")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class _Seen:
    path: bytes
    facts: tuple[int, ...]


class FolderSource:
    """The folder behind `descriptor`; `path` is for showing. Raises BadImage, HostError,
    GivenUp while it is looked at. Owners are kept as root; an ordinary user's image is root's.
    """

    def __init__(self, descriptor: int, path: str, stop: threading.Event) -> None:
        self._path = path
        self._stop = stop
        self._current = -1
        self._root = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        try:
            self._walk()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._let_go()
        os.close(self._root)

    @property
    def count(self) -> int:
        return len(self._files)

    def descriptor(self, number: int) -> int:
        """The file with this number, open until another one is asked for."""
        self._let_go()
        seen = self._files[number]
        self._current = self._open(seen.path, _READ)
        if _facts(os.fstat(self._current)) != seen.facts:
            self._changed(seen.path)
        return self._current

    def unchanged(self) -> None:
        """Raises BadImage when a second look finds anything else than the first."""
        again = FolderSource(self._root, self._path, self._stop)
        again.close()
        if self.identity != again.identity:
            raise BadImage(f"{self._path} changed while it was read")

    def _walk(self) -> None:
        self.tree = Tree()
        self.left_out = 0
        self._files: list[_Seen] = []
        self._linked: dict[tuple[int, int], File] = {}
        self._entries = self._text = 0
        self._device = os.fstat(self._root).st_dev
        self._owned = os.geteuid() == 0
        self._digest = hashlib.sha256(b"owned" if self._owned else b"root's")
        root = os.fstat(self._root)
        _take(self.tree.root, root, self._owned)
        self._digest.update(repr((root.st_mode, root.st_uid, root.st_gid)).encode())
        pending: list[tuple[bytes, Folder]] = [(b"", self.tree.root)]
        while pending:
            path, folder = pending.pop()
            pending += self._fill(path, folder)
        self.identity = self._digest.hexdigest()

    def _fill(self, path: bytes, folder: Folder) -> list[tuple[bytes, Folder]]:
        further: list[tuple[bytes, Folder]] = []
        here = self._open(path or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for name in sorted(os.fsencode(each) for each in os.listdir(here)):
                self._count(path, name)
                facts = os.stat(name, dir_fd=here, follow_symlinks=False)
                node = self._node(here, path + name, name, facts)
                if node is None:
                    self.left_out += 1
                    continue
                folder.children[name] = (node, 0)
                if isinstance(node, Folder) and facts.st_dev == self._device:
                    further.append((path + name + b"/", node))
        except FileNotFoundError:
            self._changed(path)
        except OSError as error:
            raise HostError(f"{self._path}/{shown(path)}: {error.strerror}") from error
        finally:
            os.close(here)
        return further

    def _count(self, path: bytes, name: bytes) -> None:
        if self._stop.is_set():
            raise GivenUp("the image is not wanted any more")
        self._entries += 1
        if self._entries > ENTRIES_MAX:
            raise BadImage(f"{self._path} has more than {ENTRIES_MAX} entries")
        if len(path) + len(name) > PATH_MAX or len(name) > NAME_MAX:
            raise BadImage(f"{self._path} has a path longer than {PATH_MAX} bytes")
        self._hold(len(path) + len(name))

    def _hold(self, size: int) -> None:
        """So many bytes more of names and attributes are in memory."""
        self._text += size
        if self._text > TEXT_MAX:
            what = f"names and attributes of more than {TEXT_MAX >> 20} MiB"
            raise BadImage(f"{self._path} has {what}")

    def _node(self, here: int, path: bytes, name: bytes, facts: os.stat_result) -> Node | None:
        node, link = self._kind(here, path, name, facts)
        if node is None:
            return None
        about = (facts.st_mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns, facts.st_dev)
        if not isinstance(node, Symlink):
            node.xattrs = _attributes(here, name)
            self._hold(sum(len(key) + len(value) for key, value in node.xattrs))
        # Its bytes are not read yet, and size and time of another file can be made the same.
        itself = (facts.st_size, facts.st_ino, facts.st_ctime_ns) if isinstance(node, File) else ()
        self._digest.update(repr((path, about, itself, link, node.xattrs)).encode() + b"\n")
        _take(node, facts, self._owned)
        return node

    def _kind(
        self, here: int, path: bytes, name: bytes, facts: os.stat_result
    ) -> tuple[Node | None, bytes]:
        if stat.S_ISDIR(facts.st_mode):
            return Folder(0), b""
        if stat.S_ISLNK(facts.st_mode):
            target = os.readlink(name, dir_fd=here)
            return Symlink(0, target=target), target
        if stat.S_ISFIFO(facts.st_mode):
            return Fifo(0), b""
        if not stat.S_ISREG(facts.st_mode):
            return None, b""  # sockets and devices: a guest has its own
        key = (facts.st_dev, facts.st_ino)
        if facts.st_nlink > 1 and key in self._linked:
            return self._linked[key], b"%d" % self._linked[key].content.source
        node = File(0, content=Content(len(self._files), 0, facts.st_size))
        self._files.append(_Seen(path, _facts(facts)))
        self._linked[key] = node
        return node, b""

    def _open(self, path: bytes, flags: int) -> int:
        try:
            return syscalls.openat2(self._root, path, flags | os.O_CLOEXEC, RESOLVE)
        except PermissionError as error:
            raise HostError(
                f"{self._path}/{shown(path)} may not be read by the controller's user"
            ) from error
        except OSError:
            self._changed(path)

    def _changed(self, path: bytes) -> NoReturn:
        raise BadImage(f"{self._path}/{shown(path)} changed while it was read") from None

    def _let_go(self) -> None:
        if self._current >= 0:
            os.close(self._current)
            self._current = -1


def _take(node: Node, facts: os.stat_result, owned: bool) -> None:
    node.mode = stat.S_IMODE(facts.st_mode)
    node.uid, node.gid = (facts.st_uid, facts.st_gid) if owned else (0, 0)
    node.mtime = min(max(int(facts.st_mtime), 0), (1 << 32) - 1)


def _facts(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_mode


def _attributes(here: int, name: bytes) -> tuple[tuple[bytes, bytes], ...]:
    where = b"/proc/self/fd/%d/%s" % (here, name)
    found = []
    with contextlib.suppress(OSError):  # a file system that has none
        for key in os.listxattr(where, follow_symlinks=False):
            if key.startswith(_ATTRIBUTES):
                value = os.getxattr(where, key, follow_symlinks=False)
                found.append((os.fsencode(key), value))
    return tuple(sorted(found))
