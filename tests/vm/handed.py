"""A file given to a running QEMU through its monitor, as somebody with the host's rights may."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path


def hand_over(monitor: Path, path: str) -> None:
    """It keeps the file open under the name "secret"."""
    secret = os.open(path, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(20)
            link.connect(str(monitor))
            link.recv(4096)
            link.sendall(b'{"execute":"qmp_capabilities"}')
            link.recv(4096)
            command = b'{"execute":"getfd","arguments":{"fdname":"secret"}}'
            given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", secret))]
            link.sendmsg([command], given)
            assert b"return" in link.recv(4096)
    finally:
        os.close(secret)
