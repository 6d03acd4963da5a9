"""The guest's console, kept in a bounded log.

Whatever a guest prints costs the host at most `RATE` bytes a second and two files of `LIMIT` bytes:
reading slowly makes QEMU slow the guest down. Bytes are kept as they came; whoever shows them on a
terminal escapes them.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from reconcilers.sockets import connect

LIMIT = 256 << 10
CHUNK = 4096
RATE = 64 << 10


class ConsoleLog:
    """Appends to `path`, and starts anew when it is full, keeping one older file beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, data: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        # Without O_NONBLOCK a FIFO that stands here would stop the whole controller.
        descriptor = os.open(self._path, flags | os.O_NONBLOCK, 0o600)
        try:
            os.write(descriptor, data)
            full = os.fstat(descriptor).st_size >= LIMIT
        finally:
            os.close(descriptor)
        if full:
            self._path.rename(self._path.with_name(self._path.name + ".1"))


async def follow(socket_path: Path, log: ConsoleLog) -> None:
    """Copy the console into the log until the VMM ends. Raises ChannelError at first."""
    reader, writer = await asyncio.open_connection(sock=connect(socket_path))
    try:
        await _copy(reader, log, b"")
    finally:
        writer.close()


async def follow_errors(descriptor: int, log: ConsoleLog) -> None:
    """Copy the VMM's own standard error into the log, each chunk marked as the VMM's."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    try:
        await _copy(reader, log, b"[vmm] ")
    finally:
        transport.close()


async def _copy(reader: asyncio.StreamReader, log: ConsoleLog, mark: bytes) -> None:
    while True:
        try:
            data = await reader.read(CHUNK)
        except OSError:
            return
        if not data:
            return
        try:
            log.append(mark + data)
        except OSError:
            # A full disk costs the log, never the sandbox.
            await asyncio.sleep(1.0)
        await asyncio.sleep(len(data) / RATE)
