"""Frames of an exec stream between `box exec` and the controller, the same on both sides.

A frame is one byte of kind, four bytes of payload length (big endian) and the payload. This module
must stay as light as an interpreter start: `box exec` imports it before anything else.
"""

from __future__ import annotations

from struct import Struct

PROTOCOL = "box-exec/1"

STDIN = 1
STDIN_EOF = 2
STDOUT = 3
STDERR = 4
EXIT = 5
"""JSON: {"kind": "exit", "value": 7, "status": 7, "message": "", "limit": 0.0}; the last frame of a
stream. `limit` is the command's time limit in seconds, 0 for none.
"""
ERROR = 6
"""JSON: {"code": ..., "message": ..., "fix": ...}; the last frame of a stream that box itself
broke.
"""
KILL = 7
"""One byte: the signal number."""

HEADER = Struct("!BI")

PAYLOAD_MAX = 64 * 1024
"""Bytes. Longer payloads are a protocol error on either side, so that nobody must buffer what a
peer claims.
"""


def frame(kind: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(payload)) + payload
