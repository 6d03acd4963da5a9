"""A command in a guest, as the host holds it: bounded buffers, credit, and the way it ended.

It must not read or write the connection itself: `agent.client` hands it frames and sends for it.
The guest may lie here too: more output than it was granted is a ProtocolError.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from typing import Literal

from agent.codec import PAYLOAD_MAX, ToGuest, encode
from agent.messages import OUTPUT_WINDOW, STDIN_WINDOW, Exit
from specs.errors import BoxError, ChannelError, ProtocolError

Output = Literal["stdout", "stderr", "end"]
Send = Callable[[bytes], Awaitable[None]]
PIECE_MAX = 64 * 1024
_NAMES: tuple[Output, Output] = ("stdout", "stderr")
_SIGKILL, _ABANDON = 9, 1
_SILENT = "the guest did not end it in time"


class GuestError(BoxError):
    """The guest would not, or could not, do what was asked; its reason is in the message."""

    code = "guest_error"


class Process:
    """One running command. Read until "end", then wait(); or abandon() it."""

    def __init__(
        self, stream: int, send: Send, *, stdin: bool, window: int = OUTPUT_WINDOW
    ) -> None:
        self._stream = stream
        self._send = send
        self._window = window
        self._buffers = (bytearray(), bytearray())
        self._granted = [window, window]
        self._consumed = [0, 0]
        self._next = 0
        self._stdin_open = stdin
        self._stdin_credit = STDIN_WINDOW
        self._exit: Exit | None = None
        self._abandoned = False
        self._changed = asyncio.Event()
        self.silent = False  # whether its guest let the time limit pass, and more
        self.seconds = 0.0  # the time limit that its guest was given, as far as whoever asked says

    # -- what callers use -------------------------------------------------------------------------

    async def read(self) -> tuple[Output, bytes]:
        """The next piece of output, at most 64 KiB; ("end", b"") once the command has ended.

        Credit goes back to the guest only for what was taken here, so a caller that stops reading
        stops this command and nothing else. Output is in order within each stream.
        """
        while True:
            for channel in (self._next, 1 - self._next):
                if self._buffers[channel]:
                    self._next = 1 - channel
                    return _NAMES[channel], await self._take(channel)
            if self._exit is not None:
                return "end", b""
            await self._change()

    async def write(self, data: bytes) -> None:
        """Send to the command's standard input; returns when the guest granted room for all of it.

        Raises BrokenPipeError when the input is closed or the command has ended.
        """
        view = memoryview(data)
        while view:
            while self._stdin_open and self._exit is None and self._stdin_credit == 0:
                await self._change()
            if not self._stdin_open or self._exit is not None:
                raise BrokenPipeError("the command takes no more input")
            size = min(len(view), self._stdin_credit, PAYLOAD_MAX)
            self._stdin_credit -= size
            await self._send(encode(ToGuest.STDIN, self._stream, view[:size]))
            view = view[size:]

    async def close_stdin(self) -> None:
        """Let the command read end of file."""
        if self._stdin_open and self._exit is None:
            self._stdin_open = False
            self._wake()
            await self._send(encode(ToGuest.STDIN_END, self._stream))

    async def kill(self, signal: int = _SIGKILL) -> None:
        """Send a signal; SIGKILL ends everything the command started. No-op after its end."""
        if not 1 <= signal <= 64:
            raise ValueError(f"no such signal: {signal}")
        if self._exit is None:
            await self._send(encode(ToGuest.KILL, self._stream, bytes((signal, 0))))

    async def abandon(self) -> None:
        """Kill everything the command started and forget its output. Never raises BoxError."""
        if self._exit is None and not self._abandoned:
            self._abandoned = True
            for buffer in self._buffers:
                buffer.clear()
            with contextlib.suppress(ChannelError):
                await self._send(encode(ToGuest.KILL, self._stream, bytes((_SIGKILL, _ABANDON))))

    async def overdue(self) -> None:
        """Call it timed out when the guest, whose task that is, has not ended it in time.

        A guest says so behind the output, for which it may have no credit: then the reader is late.
        """
        if self._exit is None:
            self.silent = not any(self._buffers)
            why = "what it printed was not read, and the rest of it is lost"
            await self.abandon()
            self.ended(Exit("timeout", 0, _SILENT if self.silent else why))

    async def wait(self) -> Exit:
        """The way the command ended. Its output has to be read, or abandoned, for it to end.

        A broken channel is kind "lost", never an exception and never a status of 0.
        """
        while self._exit is None:
            await self._change()
        return self._exit

    async def collect(self, limit: int = 1 << 20) -> tuple[Exit, bytes, bytes]:
        """Everything: the end, stdout, stderr. Raises GuestError over `limit` bytes together."""
        output = {"stdout": bytearray(), "stderr": bytearray()}
        try:
            while (piece := await self.read())[0] != "end":
                output[piece[0]] += piece[1]
                if sum(map(len, output.values())) > limit:
                    raise GuestError(f"more than {limit} bytes of output")
        finally:
            await self.abandon()
        return await self.wait(), bytes(output["stdout"]), bytes(output["stderr"])

    # -- what the client calls --------------------------------------------------------------------

    def received(self, channel: int, data: bytes) -> None:
        """Output arrived. Raises ProtocolError when it is more than was granted, or nothing."""
        if not data or len(data) > self._granted[channel]:
            raise ProtocolError("the guest sent output that it was not granted")
        self._granted[channel] -= len(data)
        if not self._abandoned:
            self._buffers[channel].extend(data)
            self._wake()

    def credited(self, amount: int) -> None:
        """The guest took input. Raises ProtocolError when that is more than was sent."""
        if self._stdin_credit + amount > STDIN_WINDOW:
            raise ProtocolError("the guest granted more input than it has room for")
        self._stdin_credit += amount
        self._wake()

    def ended(self, how: Exit) -> None:
        """The guest said how it ended, or the channel broke."""
        if self._exit is None:
            self._exit = how
            self._wake()

    # -- inside -----------------------------------------------------------------------------------

    async def _take(self, channel: int) -> bytes:
        buffer = self._buffers[channel]
        piece = bytes(memoryview(buffer)[:PIECE_MAX])
        del buffer[:PIECE_MAX]
        self._consumed[channel] += len(piece)
        amount = self._consumed[channel]
        if amount >= self._window // 2 and self._exit is None:
            self._consumed[channel] = 0
            self._granted[channel] += amount
            payload = struct.pack(">BI", channel + 1, amount)
            # What was received is the caller's, even when the channel has just broken.
            with contextlib.suppress(ChannelError):
                await self._send(encode(ToGuest.CREDIT, self._stream, payload))
        return piece

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
