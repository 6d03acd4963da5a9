"""The controller's socket as a file: made, replaced and removed without harming anything else.

Whoever holds `controller.lock` may call `bind`; nobody else. A path too long for a socket address
is reached through a descriptor of its directory, here and in every client. This module must not
speak HTTP.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specs.errors import Conflict, HostError

ADDRESS_MAX = 107
"""Bytes of a path in sockaddr_un, without the closing NUL (unix(7))."""

BACKLOG = 128


@contextmanager
def address(path: Path) -> Iterator[str]:
    """A form of `path` that fits a socket address while the context lasts.

    Raises OSError when the directory of a long path cannot be opened.
    """
    if len(os.fsencode(path)) <= ADDRESS_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@dataclass(frozen=True)
class Listener:
    """A listening socket and the file that leads to it."""

    socket: socket.socket
    path: Path
    inode: tuple[int, int]

    def in_place(self) -> bool:
        """Whether the path still leads to this socket."""
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.inode

    def close(self) -> None:
        """Stop listening; the file goes only when it is still ours."""
        self.socket.close()
        if self.in_place():
            self.path.unlink(missing_ok=True)


def bind(path: Path) -> Listener:
    """Listen at `path`, mode 0600, replacing only a socket that nobody listens on.

    Raises Conflict when somebody does, HostError when something other than a socket is in the way
    or the directory cannot be used.
    """
    _refuse_what_is_not_stale(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # The file gets the mode of the socket's own inode less the umask (Linux,
        # net/unix/af_unix.c), so it is never wider than this, not even for a moment.
        os.fchmod(listener.fileno(), 0o600)
        fresh.unlink(missing_ok=True)
        with address(fresh) as where:
            listener.bind(where)
        listener.listen(BACKLOG)
        fresh.chmod(0o600)
        found = fresh.lstat()
        fresh.rename(path)
    except OSError as problem:
        listener.close()
        fresh.unlink(missing_ok=True)
        raise HostError(
            f"cannot listen here: {problem.strerror}",
            where=str(path),
            fix="BOX_HOME must be a directory of yours on a file system that can hold sockets",
        ) from problem
    return Listener(listener, path, (found.st_dev, found.st_ino))


def _refuse_what_is_not_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as problem:
        raise HostError(f"cannot be read: {problem.strerror}", where=str(path)) from problem
    if not stat.S_ISSOCK(mode):
        raise HostError(
            "is in the way of the controller's socket and is not a socket",
            where=str(path),
            fix=f"move it away: mv {path} {path}.old",
        )
    if answers(path):
        raise Conflict(
            "another controller answers here", where=str(path), fix="stop it first, or set BOX_HOME"
        )


def connect(path: Path, *, timeout: float) -> socket.socket:
    """A connected client socket. Raises OSError as connect(2) does."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.settimeout(timeout)
        with address(path) as where:
            client.connect(where)
    except BaseException:
        client.close()
        raise
    return client


def answers(path: Path) -> bool:
    """True when something accepts connections at `path`."""
    try:
        connect(path, timeout=1.0).close()
    except OSError as problem:
        # A full backlog (EAGAIN) or a slow one (timed out) belongs to a live listener.
        return problem.errno == errno.EAGAIN or isinstance(problem, TimeoutError)
    return True
