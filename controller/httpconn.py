"""One HTTP/1.1 connection on the server side: bounded in size and time, whatever the client does.

h11 parses; this module moves bytes and keeps the limits. It must not know a route or a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

import h11

from reconcilers.letgo import let_go

T = TypeVar("T")
READ_PIECE = 64 * 1024
LOOK_SECONDS = 0.5
"""How soon it is seen that a client has left that waits for a long answer."""
FLUSH_SECONDS = 1.0
"""How long a client may take what was written before the end of its connection."""


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, times in seconds. Each holds for one connection."""

    head_bytes: int = 16 * 1024
    body_bytes: int = 4 * 1024 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    reply_seconds: float = 30.0
    write_buffer_bytes: int = 64 * 1024
    connections: int = 128


class Refused(Exception):
    """The client broke a rule of HTTP or one of our limits; the connection ends after the reply."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Gone(Exception):
    """The client left, or is so slow that it is treated as having left."""


@dataclass(frozen=True)
class Request:
    """A request whose body has been read. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def upgrade(self) -> str:
        return self.headers.get("upgrade", "").strip().lower()


class HttpConnection:
    """Requests in, replies out. Not for two tasks at once."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        writer.transport.set_write_buffer_limits(high=limits.write_buffer_bytes)

    async def next_request(self) -> Request | None:
        """The next request, or None when the client is done. Raises Refused, Gone."""
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                event = await self._next_event()
        except TimeoutError:
            if not self._http.trailing_data[0]:
                return None  # an idle connection is closed without a word
            raise Refused(408, "the request's head did not arrive in time") from None
        if isinstance(event, h11.ConnectionClosed):
            return None
        if not isinstance(event, h11.Request):
            raise Gone
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        if int(headers.get("content-length", "0")) > self._limits.body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await self._body()
        except TimeoutError:
            raise Refused(408, "the request's body did not arrive in time") from None
        return Request(event.method.decode("ascii"), event.target.decode("ascii"), headers, body)

    async def while_there(self, work: Awaitable[T]) -> T:
        """What `work` returns. It is cancelled when the client leaves, or says that it will send
        nothing more: nobody is there for what it makes. Raises Gone, and what `work` raises.
        """
        working = asyncio.ensure_future(work)
        try:
            while not working.done():
                await asyncio.wait({working}, timeout=LOOK_SECONDS)
                if not working.done() and (self.reader.at_eof() or self.reader.exception()):
                    raise Gone
            return working.result()
        finally:
            await let_go(working)

    async def _body(self) -> bytes:
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        pieces: list[bytes] = []
        size = 0
        while True:
            event = await self._next_event()
            if isinstance(event, h11.EndOfMessage):
                return b"".join(pieces)
            if not isinstance(event, h11.Data):
                raise Gone
            size += len(event.data)
            if size > self._limits.body_bytes:
                raise self._too_large()
            pieces.append(bytes(event.data))

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is over {self._limits.body_bytes} bytes")

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as problem:
                raise Refused(problem.error_status_hint, str(problem)) from None
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            try:
                data = await self.reader.read(READ_PIECE)
            except OSError as problem:
                raise Gone from problem
            try:
                self._http.receive_data(data)
            except h11.RemoteProtocolError as problem:
                raise Gone from problem

    async def reply(
        self, status: int, body: bytes, *, content_type: str = "application/json"
    ) -> bool:
        """Send a whole reply; True when another request may follow. Raises Gone."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return False
        headers = [
            ("Content-Type", content_type),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        if self._http.their_state in (h11.IDLE, h11.SEND_BODY, h11.ERROR):  # not all was read
            headers.append(("Connection", "close"))
        response = h11.Response(status_code=status, headers=headers, reason=reason_of(status))
        await self._send(response, h11.Data(data=body), h11.EndOfMessage())
        try:
            self._http.start_next_cycle()
        except h11.LocalProtocolError:  # one side must close
            return False
        return True

    async def switch(self, protocol: str) -> bytes:
        """Answer 101 and give the connection up; returns bytes already received past the head."""
        headers = [("Upgrade", protocol), ("Connection", "Upgrade")]
        await self._send(
            h11.InformationalResponse(status_code=101, headers=headers, reason=reason_of(101))
        )
        return bytes(self._http.trailing_data[0])

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._http.send(event) or b"" for event in events)
        try:
            self.writer.write(data)
            async with asyncio.timeout(self._limits.reply_seconds):
                await self.writer.drain()
        except (TimeoutError, OSError) as problem:
            raise Gone from problem

    async def close(self) -> None:
        """Flush what the client still takes, then close; never waits for a client that does not
        read.
        """
        self.writer.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self.writer.wait_closed()
        # asyncio's abort() fails on a connection that ended by itself while it was flushed.
        if self.writer.get_extra_info("socket").fileno() >= 0:
            self.writer.transport.abort()


def reason_of(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode("ascii")
