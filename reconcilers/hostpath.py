"""Opens a directory of the host by walking its path, a descriptor at a time, and remembers the way.

What a path leads to can change between two looks, so it is looked at once and the descriptor is
what is judged and used. Directories are told apart by device and inode, never by text. It must not
follow a link that it does not see, and must not judge.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from reconcilers.confinement import procfile

_LINKS_MAX = 40  # path_resolution(7)
_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
Identity = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True)
class Opened:
    """`descriptor` (O_PATH) is open as long as the context it came from. `path` has no link in it.

    `visited`: every directory that a name was looked up in on the way, through links too.
    `closed`: the path of the first of them that only its owner and its group may search.
    """

    descriptor: int
    path: str
    identity: Identity
    uid: int
    gid: int
    visited: frozenset[Identity]
    closed: str = ""
    mode: int = 0


@contextmanager
def opened_directory(path: str) -> Iterator[Opened]:
    """The directory at an absolute `path`. Raises OSError when it is none or cannot be reached."""
    walk = _Walk()
    try:
        walk.along(path)
        found = os.fstat(walk.descriptor)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is not a directory", path)
        yield Opened(
            descriptor=walk.descriptor,
            path="/" + "/".join(walk.names),
            identity=(found.st_dev, found.st_ino),
            uid=found.st_uid,
            gid=found.st_gid,
            visited=frozenset(walk.visited),
            closed=walk.closed,
            mode=found.st_mode,
        )
    finally:
        os.close(walk.descriptor)


def ancestors(descriptor: int) -> tuple[Identity, ...]:
    """The directory behind `descriptor` and each one above it, as the mounts are now."""
    found = [_identity(descriptor)]
    current = os.dup(descriptor)
    try:
        while True:
            above = os.open("..", _FLAGS | os.O_DIRECTORY, dir_fd=current)
            former, current = current, above
            try:
                identity = _identity(current)
                # The root is its own parent. So, to look at, is a directory that is mounted on one
                # of its own entries, and above that there is more.
                if identity == found[-1] and _mount_of(current) == _mount_of(former):
                    return tuple(found)
            finally:
                os.close(former)
            found.append(identity)
    finally:
        os.close(current)


def _mount_of(descriptor: int) -> str:
    """The number of the mount it is on (proc(5), fdinfo)."""
    return procfile.fields(f"/proc/self/fdinfo/{descriptor}")["mnt_id"]


def _identity(descriptor: int) -> Identity:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


class _Walk:
    def __init__(self) -> None:
        self.descriptor = os.open("/", _FLAGS | os.O_DIRECTORY)
        self.names: list[str] = []
        self.visited: set[Identity] = set()
        self.closed = ""
        self._links = 0

    def along(self, path: str) -> None:
        pending = _parts(path)
        while pending:
            name = pending.pop(0)
            self._look_up()
            if name == "..":
                self._enter(os.open("..", _FLAGS | os.O_DIRECTORY, dir_fd=self.descriptor))
                del self.names[-1:]
                continue
            found = self._opened(name)
            if not stat.S_ISLNK(os.fstat(found).st_mode):
                self._enter(found)
                self.names.append(name)
                continue
            try:
                target = os.readlink("", dir_fd=found)
            finally:
                os.close(found)
            self._links += 1
            if self._links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                self._enter(os.open("/", _FLAGS | os.O_DIRECTORY))
                self.names.clear()
            pending = _parts(target) + pending

    def _opened(self, name: str) -> int:
        """A directory is asked for as one, for that mounts what autofs has there: O_PATH alone
        would be given the empty folder underneath (autofs(5)).
        """
        try:
            return os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=self.descriptor)
        except NotADirectoryError:  # also for a link
            return os.open(name, _FLAGS, dir_fd=self.descriptor)

    def _look_up(self) -> None:
        found = os.fstat(self.descriptor)
        self.visited.add((found.st_dev, found.st_ino))
        if not self.closed and not found.st_mode & stat.S_IXOTH:
            self.closed = "/" + "/".join(self.names)

    def _enter(self, descriptor: int) -> None:
        os.close(self.descriptor)
        self.descriptor = descriptor


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
