"""A client of the exec stream, written from the description of the protocol alone."""

from __future__ import annotations

import asyncio
import json
import os
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller import execframes as wire
from tests.unit.cli.hostservice import HostService


class Client:
    """The other side of the stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def start(
        cls, path: Path, *argv: str | bytes, name: str = "agent", **more: Any
    ) -> Client:
        words = [b64encode(os.fsencode(word)).decode() for word in argv]
        body = json.dumps({"argv_b64": words, **more}).encode()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(
            f"POST /v1/sandboxes/{name}/exec HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\n"
            f"Upgrade: box-exec/1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return cls(reader, writer)

    async def accepted(self) -> Client:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)
        assert head.startswith(b"HTTP/1.1 101 "), head
        return self

    async def refusal(self) -> tuple[int, dict[str, str]]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        body = await self.reader.readexactly(length)
        return int(head.split()[1]), json.loads(body)["error"]

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.writer.write(bytes([kind]) + len(payload).to_bytes(4, "big") + payload)

    async def frame(self) -> tuple[int, bytes]:
        head = await asyncio.wait_for(self.reader.readexactly(5), 60)
        return head[0], await self.reader.readexactly(int.from_bytes(head[1:], "big"))

    async def collect(self) -> tuple[bytes, bytes, dict[str, Any]]:
        """stdout, stderr and the last frame, whose `frame` says its kind."""
        out = {wire.STDOUT: bytearray(), wire.STDERR: bytearray()}
        while True:
            kind, payload = await self.frame()
            if kind in out:
                out[kind] += payload
                continue
            assert await self.reader.read() == b"", "something came after the last frame"
            self.writer.close()
            last = {"frame": kind, **json.loads(payload)}
            return bytes(out[wire.STDOUT]), bytes(out[wire.STDERR]), last


async def run(path: Path, *argv: str | bytes, **more: Any) -> tuple[bytes, bytes, dict[str, Any]]:
    return await (await (await Client.start(path, *argv, **more)).accepted()).collect()


async def ended(pid: int, within: float = 60.0) -> bool:
    """Whether the process is gone (or a zombie that asyncio is about to reap)."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if state_of(pid) in ("", "Z"):
            return True
        await asyncio.sleep(0.02)
    return False


def state_of(pid: int) -> str:
    """The process state of proc(5), empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def started(service: HostService) -> int:
    await until(lambda: bool(service.commands), "a command was started")
    return service.commands[-1].pid


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        await asyncio.sleep(0.01)


async def settled(value: Callable[[], int], still: float = 0.3) -> int:
    """The value once it has not changed for `still` seconds, which has to be within a minute."""
    deadline = time.monotonic() + 60
    found = value()
    while True:
        await asyncio.sleep(still)
        if (now := value()) == found:
            return found
        assert time.monotonic() < deadline, f"it goes on: {now}"
        found = now
