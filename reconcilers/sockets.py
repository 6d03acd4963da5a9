"""Unix sockets between the controller and a VMM.

The host side binds them and hands the VMM a listening descriptor, so a VMM never creates a name on
the host. Connecting goes through a descriptor of the socket's own inode: a name swapped for a link
or a file is noticed, never followed.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
from pathlib import Path

from specs.errors import ChannelError
from specs.names import check_socket_path

SOCKET_MODE = 0o600


def listen(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 0600, replacing whatever stale thing has that name.

    Bound under a name nobody knows and renamed into place: rename(2) replaces a link or a file
    itself and follows nothing. The caller makes sure that no live VMM listens there. Raises
    HostError when the path is too long.
    """
    temporary = path.with_name(f".{secrets.token_hex(4)}")
    check_socket_path(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(temporary))
        os.chmod(temporary, SOCKET_MODE)
        listener.listen(8)
        os.rename(temporary, path)
    except BaseException:
        listener.close()
        temporary.unlink(missing_ok=True)
        raise
    return listener


def connect(path: Path) -> socket.socket:
    """Connect to a socket of ours, non-blocking from then on. Raises ChannelError."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ChannelError(f"cannot reach {path}: {error.strerror}") from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.geteuid():
            raise ChannelError(f"{path} is not a socket of ours")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.setblocking(False)
        try:
            connection.connect(f"/proc/self/fd/{descriptor}")
        except OSError as error:
            connection.close()
            raise ChannelError(f"cannot connect to {path}: {error.strerror}") from error
        return connection
    finally:
        os.close(descriptor)
