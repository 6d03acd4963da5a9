"""The agent's protocol as a guest speaks it, written from agent/PROTOCOL.md.

It tells the truth where the protocol has one; what is sent instead of it is the business of
whoever uses it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Mapping

HEADER = struct.Struct(">BBHII")
MAGIC, END = 0xB0C5, b"\x5a"
PAYLOAD_MAX = 32755
HELLO, REQUEST, CREDIT = 0x01, 0x02, 0x06
HELLO_ACK, REPLY, STDOUT, STDERR, EXIT = 0x81, 0x83, 0x84, 0x85, 0x87
EXEC = 2
CAPABILITIES = "exec read write resize clock reseed rotate ping shutdown stats mount network"


def frame(kind: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """One frame; `length` is what its header claims, when that is a lie."""
    size = len(payload) if length is None else length
    return HEADER.pack(kind, 0, MAGIC, stream, size) + payload + END


class Speaker:
    """One connection of the controller to the agent, which ends with the connection."""

    def __init__(self, connection: socket.socket, facts: Mapping[str, str] | None = None) -> None:
        self.connection = connection
        self.facts = {
            "protocol": "1",
            "agent": "stand-in",
            "kernel": "0",
            "machine": "x86_64",
            "boot_id": "0",
            "root": "overlay",
            "data": "ext4 1",
            "capabilities": CAPABILITIES,
            "uptime_us": "1",
            **(facts or {}),
        }
        self._received = b""
        self.on_credit: Callable[[int, int, int], None] = lambda *_: None
        """Told (stream, channel, bytes) when the host grants room for output."""

    def greet(self) -> None:
        """Read the host's hello and answer it."""
        self.answer(self.hello())

    def hello(self) -> bytes:
        """The nonce of the host's hello, which has to be answered."""
        while True:
            kind, _, payload = self.frame()
            if kind == HELLO:
                return payload[:16]

    def answer(self, nonce: bytes, **facts: str) -> None:
        lines = "".join(f"{key}={value}\n" for key, value in {**self.facts, **facts}.items())
        mark = b"\0BOXSYNC" + nonce
        self.connection.sendall(mark + frame(HELLO_ACK, 0, lines.encode()))

    def frame(self) -> tuple[int, int, bytes]:
        """(type, stream, payload) of the next frame. Raises ConnectionError at the end."""
        while True:
            self._received = self._received.lstrip(b"\0")
            if len(self._received) >= HEADER.size:
                kind, _, _, stream, size = HEADER.unpack_from(self._received)
                if len(self._received) > HEADER.size + size:
                    payload = self._received[HEADER.size : HEADER.size + size]
                    self._received = self._received[HEADER.size + size + 1 :]
                    return kind, stream, payload
            self._receive()

    def _receive(self) -> None:
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the host closed the channel")
        self._received += data

    def request(self) -> tuple[int, int, bytes]:
        """(kind, stream, what of its body came with it) of the next request."""
        while True:
            kind, stream, payload = self.frame()
            if kind == REQUEST:
                return payload[0], stream, payload[5:]
            if kind == CREDIT and len(payload) == 5:
                self.on_credit(stream, payload[0], int.from_bytes(payload[1:], "big"))

    def serve(self, seconds: float) -> None:
        """Greet, and answer every question as if it had been done; until the end, or so long."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.greet()
            while time.monotonic() < deadline:
                self.obey()

    def obey(self) -> tuple[int, int, bytes]:
        """Answer one request as a good agent does, a command excepted; what it was."""
        kind, stream, body = self.request()
        if kind == 5:  # RESIZE
            size = struct.unpack(">Q", body[:8])[0]
            self.connection.sendall(frame(STDOUT, stream, str(size).encode()))
            self.connection.sendall(frame(EXIT, stream, b"\0" + bytes(4)))
        elif kind not in (2, 3, 4):
            echo = body if kind == 1 else b""
            self.connection.sendall(frame(REPLY, stream, b"\0" + echo))
        return kind, stream, body
