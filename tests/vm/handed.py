"""A file given to a running QEMU through its monitor, as somebody with the host's rights may."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import BinaryIO


def hand_over(monitor: Path, path: str) -> None:
    """It keeps the file open under the name "secret"."""
    secret = os.open(path, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(20)
            link.connect(str(monitor))
            with link.makefile("rb") as lines:
                lines.readline()
                link.sendall(b'{"execute":"qmp_capabilities"}')
                _answered(lines)
                command = b'{"execute":"getfd","arguments":{"fdname":"secret"}}'
                given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", secret))]
                link.sendmsg([command], given)
                _answered(lines)
    finally:
        os.close(secret)


def _answered(lines: BinaryIO) -> None:
    """The command was done. What the machine tells of itself meanwhile is no answer."""
    while b'"event"' in (line := lines.readline()):
        pass
    assert b"return" in line, line
