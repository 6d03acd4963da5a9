"""Frames of the agent protocol, as pure functions and an incremental decoder.

The peer is a guest: it may send anything at any pace. Nothing here trusts a length or keeps more
than one incomplete frame; what is wrong is a ProtocolError, never a guess. It must not do I/O. The
numbers are those of PROTOCOL.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from specs.errors import ProtocolError

HEADER = struct.Struct(">BBHII")
MAGIC = 0xB0C5
END_MARK = 0x5A
FRAME_MAX = 32768
PAYLOAD_MAX = FRAME_MAX - HEADER.size - 1
ZERO_RUN = 64
RESYNC = bytes(FRAME_MAX + ZERO_RUN)
"""What a host sends first: it completes, and voids, any frame that an earlier host cut short."""
SYNC_MARK = b"\0BOXSYNC"
NONCE_SIZE = 16
SYNC_SEARCH_MAX = 4 << 20
STREAM_MAX = 0xFFFFFFFF


class ToGuest(IntEnum):
    """Frame types the host sends."""

    HELLO = 0x01
    REQUEST = 0x02
    BODY = 0x03
    STDIN = 0x04
    STDIN_END = 0x05
    CREDIT = 0x06
    KILL = 0x07


class ToHost(IntEnum):
    """Frame types the guest may send; any other number is a lie."""

    HELLO_ACK = 0x81
    REFUSED = 0x82
    REPLY = 0x83
    STDOUT = 0x84
    STDERR = 0x85
    CREDIT = 0x86
    EXIT = 0x87


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame off the wire: `type` 1-255, `stream` 0 for the session itself, at most PAYLOAD_MAX
    bytes of payload.
    """

    type: int
    stream: int
    payload: bytes


def encode(kind: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """The bytes of one frame. Raises ValueError for a frame that must not exist."""
    if not 1 <= kind <= 255 or not 0 <= stream <= STREAM_MAX or len(payload) > PAYLOAD_MAX:
        raise ValueError(f"no such frame: type {kind}, stream {stream}, {len(payload)} bytes")
    header = HEADER.pack(kind, 0, MAGIC, stream, len(payload))
    return b"".join((header, payload, bytes((END_MARK,))))


class Decoder:
    """Turns received bytes into frames. After an error it stays broken."""

    def __init__(self) -> None:
        self._pending = b""
        self._broken = False

    @property
    def held(self) -> int:
        """Bytes kept for a frame that is not complete yet; always less than FRAME_MAX."""
        return len(self._pending)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes; run it to its end before feeding again.

        Raises ProtocolError at the first wrong header or end mark.
        """
        if self._broken:
            raise ProtocolError("the guest's channel is broken")
        received = self._pending + data if self._pending else data
        position, end = 0, len(received)
        while end - position >= HEADER.size:
            kind, reserved, magic, stream, length = HEADER.unpack_from(received, position)
            if kind == 0 or reserved != 0 or magic != MAGIC or length > PAYLOAD_MAX:
                self._break("the guest sent bytes that are no frame")
            start = position + HEADER.size
            after = start + length
            if after >= end:
                break
            if received[after] != END_MARK:
                self._break("the guest sent a frame without its end mark")
            position = after + 1
            yield Frame(kind, stream, received[start:after])
        self._pending = received[position:]

    def _break(self, message: str) -> None:
        self._broken = True
        self._pending = b""
        raise ProtocolError(message)


class SyncFinder:
    """Discards what an earlier session left in the pipe, up to the mark that carries our nonce."""

    def __init__(self, nonce: bytes) -> None:
        if len(nonce) != NONCE_SIZE:
            raise ValueError("a nonce is 16 bytes")
        self._mark = SYNC_MARK + nonce
        self._tail = b""
        self._seen = 0

    def feed(self, data: bytes) -> bytes | None:
        """What follows the mark, or None while it has not come.

        Raises ProtocolError after 4 MiB without it.
        """
        received = self._tail + data
        found = received.find(self._mark)
        if found >= 0:
            return received[found + len(self._mark) :]
        self._seen += len(data)
        if self._seen > SYNC_SEARCH_MAX:
            raise ProtocolError("the guest sends, but does not answer hello")
        self._tail = received[1 - len(self._mark) :]
        return None
