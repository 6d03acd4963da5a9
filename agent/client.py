"""The host's end of the channel into one guest.

One task reads frames and hands each to the command or question it belongs to; everything held is
bounded by credit, so a guest can fill only what it was granted. A guest that breaks the protocol
loses its own channel: every command becomes "lost", every question fails. It must not decide what
a broken channel means for the sandbox, and must believe nothing that matters for confinement.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
import time
from collections.abc import Awaitable

from agent import merged, messages
from agent.codec import Decoder, Frame, ToHost
from agent.handshake import greet, some
from agent.merged import Merged
from agent.messages import ExecRequest, Exit, Hello, Kind
from agent.process import GuestError, Output, Process
from specs.errors import BoxError, ChannelError, ProtocolError

__all__ = ["AgentClient", "ExecRequest", "Exit", "GuestError", "Hello", "Output", "Process"]

SEND_SECONDS = 30.0
REPLY_SECONDS = 10.0
# Growing a file system writes to it, and an emulated guest is slow.
RESIZE_SECONDS = 60.0
POWER_OFF_SECONDS = 10.0
UNANSWERED_MAX = 64
_REPLY_WORDS = {1: "malformed", 2: "refused", 3: "failed"}


class AgentClient:
    """A session with the agent of one guest. Make it with `connect`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hello: Hello,
        decoder: Decoder,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._numbers = itertools.count(1)
        self._processes: dict[int, Process] = {}
        self._replies: dict[int, asyncio.Future[bytes]] = {}
        self._failure: BoxError | None = None
        self.hello = hello
        self.closed = asyncio.Event()
        self._receiver = asyncio.create_task(self._receive(), name="agent channel")

    @classmethod
    async def connect(
        cls,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        token: bytes,
        first: bool,
        timeout: float = 20.0,
    ) -> AgentClient:
        """Open a session; any earlier one ends, with its commands. `timeout` in seconds.

        With `first` the guest takes `token` (32 bytes) for its own, and is given fresh randomness
        and the time. Raises ChannelError when the guest is silent or refuses, ProtocolError when
        it talks nonsense; the connection is then closed.
        """
        try:
            async with asyncio.timeout(timeout):
                hello, decoder = await greet(reader, writer, token, first=first)
                client = cls(reader, writer, hello, decoder)
                if first:
                    await asyncio.gather(
                        client.reseed(os.urandom(64)), client.set_clock(time.time_ns())
                    )
            return client
        except TimeoutError:
            writer.transport.abort()
            raise ChannelError(f"the guest's agent was silent for {timeout:g} s") from None
        except OSError as error:
            writer.transport.abort()
            raise ChannelError(f"the agent's channel broke: {error.strerror}") from error
        except BaseException:
            writer.transport.abort()
            raise

    # -- commands and files -----------------------------------------------------------------------

    async def exec(self, request: ExecRequest) -> Process:
        """Start a command. That it could not be started is told by the Process's wait().

        Raises UsageError for what cannot be asked for, ChannelError for a broken channel.
        """
        return await self._start(Kind.EXEC, messages.exec_body(request), stdin=request.stdin)

    async def read_file(self, path: str, limit: int = 16 << 20) -> bytes:
        """The content of a regular file of the guest. Raises GuestError, also over `limit`."""
        process = await self._start(Kind.READ, messages.read_body(path))
        how, content, _ = await process.collect(limit)
        _check(how, f"cannot read {path}")
        return content

    async def write_file(
        self, path: str, data: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0
    ) -> None:
        """Replace a file of the guest as a whole, or leave it as it was. Raises GuestError."""
        body = messages.write_body(path, len(data), mode, uid, gid)
        process = await self._start(Kind.WRITE, body, stdin=True)
        try:
            with contextlib.suppress(BrokenPipeError):
                await process.write(data)
                await process.close_stdin()
            how = await process.wait()
        finally:
            await process.abandon()
        _check(how, f"cannot write {path}")

    async def resize_data(self, want: int = 0) -> int:
        """Grow /data to its disk; the size of its file system in bytes. Raises GuestError.

        `want`: the disk's new size in bytes, waited for up to 2 s, since the guest's kernel learns
        of it a moment after the host has changed it. Raises ChannelError for a guest that does not
        say within RESIZE_SECONDS how it went.
        """
        process = await self._start(Kind.RESIZE, struct.pack(">Q", want))
        try:
            async with asyncio.timeout(RESIZE_SECONDS):
                how, output, _ = await process.collect(64)
        except TimeoutError:
            raise ChannelError(
                f"the guest's agent did not answer resize within {RESIZE_SECONDS:g} s"
            ) from None
        _check(how, "cannot grow /data")
        if not output.isdigit() or len(output) > 19:
            raise ProtocolError("the guest sent no number for the size of /data")
        return int(output)

    async def export_data(self, seconds: float) -> None:
        """Write all of /data as an archive to the disk `transfer`. Raises GuestError, also for a
        disk that is too short, and ChannelError when it takes longer than `seconds`.
        """
        await self._transfer(Kind.EXPORT, "cannot export /data", seconds)

    async def import_data(self, seconds: float) -> None:
        """Add what is in the archive on the disk `transfer` to /data, or nothing of it. Raises as
        `export_data`; GuestError says also what of /data is in the way.
        """
        await self._transfer(Kind.IMPORT, "cannot import into /data", seconds)

    async def changes(self, seconds: float, *, with_data: bool) -> int:
        """Write what differs between the disk `base` and /data to the disk `transfer`, with what is
        in files or without; how many entries that are, by the guest's word. Raises as
        `export_data`.
        """
        body = messages.changes_body(with_data=with_data)
        told = await self._transfer(Kind.CHANGES, "cannot compare /data", seconds, body)
        return merged.count(told)

    async def merge(self, seconds: float, *, theirs: bool, dry_run: bool) -> Merged:
        """Bring the changes on the disk `transfer` into /data, which both came from the disk
        `base`. Nothing is written with `dry_run`, and where there are conflicts without `theirs`.
        Raises as `export_data`.
        """
        body = messages.merge_body(theirs=theirs, dry_run=dry_run)
        what, limit = "cannot apply the changes", merged.SIZE_MAX
        return merged.parse(await self._transfer(Kind.MERGE, what, seconds, body, limit))

    async def export_root(self, seconds: float) -> None:
        """End what runs, and write the whole root as an archive to the disk `transfer`. Raises as
        `export_data`.
        """
        await self._transfer(Kind.EXPORT_ROOT, "cannot hand out the root", seconds)

    async def _transfer(
        self, kind: Kind, what: str, seconds: float, body: bytes = b"", limit: int = 64
    ) -> bytes:
        if ("changes" if body else "transfer") not in self.hello.capabilities:
            raise GuestError(f"{what}: the guest's agent is too old")
        process = await self._start(kind, body)
        try:
            async with asyncio.timeout(seconds):
                how, told, _ = await process.collect(limit)
        except TimeoutError:
            raise ChannelError(f"{what}: it took longer than {seconds:g} s") from None
        _check(how, what)
        return told

    # -- questions --------------------------------------------------------------------------------

    async def ping(self, timeout: float = REPLY_SECONDS) -> float:
        """Seconds until the agent answered. Raises ChannelError when it does not."""
        began, word = time.monotonic(), os.urandom(8)
        if await self._ask(Kind.PING, word, timeout) != word:
            raise ProtocolError("the guest answered a ping with other bytes")
        return time.monotonic() - began

    async def set_clock(self, ns: int) -> None:
        """Set the guest's wall clock, nanoseconds since 1970. Raises GuestError."""
        await self._ask(Kind.CLOCK, struct.pack(">Q", ns))

    async def reseed(self, seed: bytes) -> None:
        """Credit 16 to 512 random bytes to the guest's generator, and reseed it from them."""
        await self._ask(Kind.RESEED, seed)

    async def rotate_token(self, new: bytes) -> None:
        """Make `new` (32 bytes) the token of later connections. Raises GuestError."""
        await self._ask(Kind.ROTATE, new)

    async def mount(self, tag: str, path: str, *, readonly: bool) -> None:
        """Show the shared directory `tag` to the workloads at `path`; again is no mistake.

        Raises GuestError, in the guest's own words, when it cannot be.
        """
        if "mount" not in self.hello.capabilities:
            raise GuestError("the guest's agent cannot mount shared directories")
        await self._ask(Kind.MOUNT, messages.mount_body(tag, path, readonly=readonly))

    async def set_network(self, body: bytes) -> str:
        """Give the guest's network card its addresses, routes, MTU and name servers; again changes
        what differs. `body` is as PROTOCOL.md says.

        Returns what could not be done and does not matter to the network itself, or nothing. Raises
        GuestError, in the guest's own words, when the network could not be set.
        """
        if "network" not in self.hello.capabilities:
            raise GuestError("the guest's agent cannot set up a network")
        return messages.scrub(await self._ask(Kind.NETWORK, body))

    async def stats(self) -> dict[str, str]:
        """Numbers the agent keeps; for people."""
        return messages.parse_stats(await self._ask(Kind.STATS))

    async def shutdown(self, timeout: float = 10.0, grace: float = 1.0) -> None:
        """End all commands (SIGTERM, `grace` seconds, SIGKILL), unmount /data, power off.

        Returns when the guest has said that /data is safe and the channel has closed, or `timeout`
        seconds after it said so, at most POWER_OFF_SECONDS. Raises ChannelError when the guest does
        not answer in `timeout`.
        """
        body = struct.pack(">I", int(grace * 1000))
        await self._ask(Kind.SHUTDOWN, body, timeout)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout, POWER_OFF_SECONDS)):
                await self.closed.wait()
        await self.close()

    async def close(self) -> None:
        """Leave. The guest ends the session's commands when it notices."""
        self._fail(ChannelError("the agent's channel was closed"))
        self._receiver.cancel()
        await asyncio.gather(self._receiver, return_exceptions=True)

    # -- inside -----------------------------------------------------------------------------------

    async def _start(self, kind: Kind, body: bytes, *, stdin: bool = False) -> Process:
        number = next(self._numbers)
        frames = messages.request(number, kind, body)
        process = Process(number, self._send, stdin=stdin)
        self._processes[number] = process
        try:
            for frame in frames:
                await self._send(frame)
        except BaseException:
            # Half a request: the agent drops it on KILL, and answers EXIT like for any other.
            await asyncio.shield(process.abandon())
            raise
        return process

    async def _ask(self, kind: Kind, body: bytes = b"", timeout: float = REPLY_SECONDS) -> bytes:
        if len(self._replies) >= UNANSWERED_MAX:
            raise self._fail(ChannelError("the guest's agent has stopped answering"))
        number = next(self._numbers)
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        for frame in messages.request(number, kind, body):
            await self._send(frame)
        try:
            async with asyncio.timeout(timeout):
                payload = await reply
        except TimeoutError:
            raise ChannelError(
                f"the guest's agent did not answer {kind.name.lower()} within {timeout:g} s"
            ) from None
        if not payload:
            raise self._fail(ProtocolError("the guest sent an empty reply"))
        if payload[0] != 0:
            word = _REPLY_WORDS.get(payload[0], "failed")
            reason = messages.scrub(payload[1:])
            raise GuestError(f"the guest's agent {word} {kind.name.lower()}: {reason}")
        return payload[1:]

    async def _send(self, frame: bytes) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)
        self._writer.write(frame)
        await self._bounded(self._writer.drain())

    async def _bounded(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await sending
        except TimeoutError:
            message = f"the guest's agent took nothing for {SEND_SECONDS:g} s"
            raise self._fail(ChannelError(message)) from None
        except OSError as error:
            raise self._fail(ChannelError(f"the agent's channel broke: {error}")) from error

    async def _receive(self) -> None:
        try:
            while True:
                for frame in self._decoder.feed(await some(self._reader)):
                    self._handle(frame)
        except BoxError as error:
            self._fail(error)
        except OSError as error:
            self._fail(ChannelError(f"the agent's channel broke: {error}"))

    def _handle(self, frame: Frame) -> None:
        number, kind = frame.stream, frame.type
        if kind == ToHost.REPLY:
            reply = self._replies.pop(number, None)
            if reply is None:
                raise ProtocolError("the guest answers a question nobody asked")
            if not reply.done():
                reply.set_result(frame.payload)
            return
        if kind == ToHost.REFUSED:  # its commands are dead, and nothing more will come
            reason = messages.scrub(frame.payload[1:])
            raise ProtocolError(f"the guest's agent ended the session: {reason}")
        process = self._processes.get(number)
        if process is None:
            raise ProtocolError("the guest speaks on a stream that nobody opened")
        if kind == ToHost.STDOUT or kind == ToHost.STDERR:
            process.received(0 if kind == ToHost.STDOUT else 1, frame.payload)
        elif kind == ToHost.CREDIT:
            process.credited(messages.parse_credit(frame.payload))
        elif kind == ToHost.EXIT:
            how = messages.parse_exit(frame.payload)
            del self._processes[number]
            process.ended(how)
        else:
            raise ProtocolError("the guest sent a frame of an unknown type")

    def _fail(self, error: BoxError) -> BoxError:
        """Close the channel because of `error`, once; the error that everybody gets."""
        if self._failure is None:
            self._failure = error
            for process in self._processes.values():
                process.ended(Exit("lost", 0, error.message))
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(error)
                    reply.exception()  # whoever asked may be gone; that is no bug of theirs
            self._processes.clear()
            self._replies.clear()
            self._writer.transport.abort()
            self.closed.set()
        return self._failure

    @property
    def failure(self) -> BoxError | None:
        """Why the channel is closed, or None while it works."""
        return self._failure


def _check(how: Exit, what: str) -> None:
    if how.kind == "lost":
        raise ChannelError(f"{what}: {how.message}")
    if how.kind != "exit" or how.value != 0:
        raise GuestError(f"{what}: {how.message or f'{how.kind} {how.value}'}")
