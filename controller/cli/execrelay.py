"""The running half of `box exec`: frames from the controller, bytes from and to this terminal.

Imported by every `box exec`, so it stays with C modules and our own light ones. It keeps at most
one piece of input and one of output, and writes the command's output byte for byte.
"""

from __future__ import annotations

import os
import select
import sys
from _socket import socket as Socket

from controller import execframes as wire
from specs.errors import BoxError, NotUp
from specs.text import visible, visible_lines

READ_PIECE = 256 * 1024
SIGINT = 2
BOX_FAILED = 125
READER_LEFT = 141
INTERRUPTED = 130


class Relay:
    """Frames of one running command. Keeps at most one piece of input and one of output."""

    def __init__(self, connection: Socket, received: bytes, stdin: bool) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._incoming = bytearray(received)
        self._outgoing = b""
        self._stdin = stdin
        self._interrupts = 0
        self._poll = select.poll()

    def carry(self) -> int:
        while True:
            try:
                status = self._take_frames()
                if status is not None:
                    return status
                self._move()
            except KeyboardInterrupt:
                if not self._interrupt():
                    return INTERRUPTED
            except BrokenPipeError:
                return READER_LEFT  # leaving ends the command

    def _interrupt(self) -> bool:
        """Pass Ctrl-C on once; False when it is time to leave, which kills the command."""
        self._interrupts += 1
        if self._interrupts > 1 or self._outgoing:
            return False
        self._outgoing = wire.frame(wire.KILL, bytes([SIGINT]))
        return True

    def _move(self) -> None:
        """Wait until something can move, then move it."""
        sock = self._connection.fileno()
        self._poll.register(sock, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        # Input is read only when the last of it is on its way: this side buffers one piece.
        if self._stdin and not self._outgoing:
            self._poll.register(0, select.POLLIN)
        ready = dict(self._poll.poll())
        if self._stdin and not self._outgoing:
            self._poll.unregister(0)
        if self._outgoing and ready.get(sock, 0) & (select.POLLOUT | select.POLLERR):
            self._send()
        if 0 in ready:
            self._read_stdin()
        if ready.get(sock, 0) & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._receive()

    def _send(self) -> None:
        try:
            sent = self._connection.send(self._outgoing)
        except BlockingIOError:
            return
        except OSError:
            self._outgoing = b""  # the reason is on its way to us, or the end of the stream is
            self._stdin = False
            return
        self._outgoing = self._outgoing[sent:]

    def _read_stdin(self) -> None:
        try:
            data = os.read(0, wire.PAYLOAD_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a closed or unreadable stdin is an empty one
        self._stdin = bool(data)
        self._outgoing = wire.frame(wire.STDIN, data) if data else wire.frame(wire.STDIN_EOF)

    def _receive(self) -> None:
        try:
            data = self._connection.recv(READ_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise NotUp(
                "the controller left while the command ran; how the command ended is unknown",
                fix="see the controller's log",
            )
        self._incoming += data

    def _take_frames(self) -> int | None:
        """Handle every whole frame received; the exit status once the last one has been."""
        while len(self._incoming) >= wire.HEADER.size:
            kind, length = wire.HEADER.unpack_from(self._incoming)
            if length > wire.PAYLOAD_MAX:
                raise NotUp(f"the controller sent a frame of {length} bytes")
            end = wire.HEADER.size + length
            if len(self._incoming) < end:
                break
            payload = memoryview(bytes(self._incoming[wire.HEADER.size : end]))
            # Before it is written: what Ctrl-C interrupts just afterwards is not written again.
            del self._incoming[:end]
            if kind == wire.STDOUT:
                _write(1, payload)
            elif kind == wire.STDERR:
                _write(2, payload)
            elif kind == wire.EXIT:
                return _exit_status(bytes(payload))
            elif kind == wire.ERROR:
                return _say(bytes(payload))
        return None


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # someone else made our terminal or pipe non-blocking
            waiting = select.poll()
            waiting.register(descriptor, select.POLLOUT)
            waiting.poll()


def _exit_status(payload: bytes) -> int:
    from json import loads

    try:
        end = loads(payload)
        status, kind, message = end["status"], end["kind"], str(end.get("message", ""))
        limit = float(end.get("limit", 0.0))
    except (ValueError, KeyError, TypeError, AttributeError):
        status = None
    if not isinstance(status, int) or not 0 <= status <= 255:
        raise NotUp("the controller did not say how the command ended")
    if kind in ("not_found", "not_executable", "refused"):  # the command itself said nothing
        words = {"not_found": "command not found", "not_executable": "cannot be executed"}
        reason = message or words.get(kind, "the guest refused to run it")
        print(f"box: {visible(reason)}", file=sys.stderr)
    elif kind == "timeout":
        # Its limit: a busy guest may have needed longer to say so, and a VM to come up.
        then = visible(message) or "everything it started is killed"
        print(f"box: timed out after {limit:g} s; {then}", file=sys.stderr)
    return status


def _say(payload: bytes) -> int:
    refusal = refusal_from(b'{"error":' + payload + b"}")
    print(f"box: {visible_lines(str(refusal))}", file=sys.stderr)
    return BOX_FAILED


def refusal_from(body: bytes) -> BoxError:
    from json import loads

    try:
        error = loads(body)["error"]
        text, fix = str(error["message"]), str(error.get("fix", ""))
        code, where = str(error["code"]), str(error.get("where", ""))
    except (ValueError, KeyError, TypeError):
        return NotUp(f"the controller answered with {visible(repr(body))}")
    kind: type[BoxError] = BoxError
    if code in ("bad_request", "bad_name"):
        from specs.errors import UsageError as kind
    return kind(text, fix=fix, where=where)
