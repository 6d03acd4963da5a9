"""A running command joined to the client that asked for it.

Output is taken from the guest only after the client has taken what came before, and input from the
client only after the command has: between the two there is never more than the transport's bounded
buffer. A client that leaves takes its command with it. This module must not start commands and
must not speak HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import select
from collections.abc import Iterator

from controller import execframes as wire
from controller.service import Command
from specs.errors import BoxError

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 5.0
"""How long the last frame, and the order to kill a command, may take."""


class _ClientGone(Exception):
    pass


class _BadFrame(Exception):
    pass


async def serve(
    command: Command,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    received: bytes = b"",
) -> None:
    """Carry a command's input, output and end until it ended; kills it when the client leaves.

    `received` is what the client sent before the stream began. Returns normally in every case but
    cancellation, and then the command has been sent SIGKILL.
    """
    ended = False
    try:
        with _hangup_of(writer) as hung_up:
            ended = await _carry(command, reader, writer, received, hung_up)
    finally:
        if not ended:
            await asyncio.shield(_put_down(command))


async def _carry(
    command: Command,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    received: bytes,
    hung_up: asyncio.Event,
) -> bool:
    """True when the command has ended by itself."""
    outward = asyncio.ensure_future(_pump_out(command, writer))
    inward = asyncio.ensure_future(_pump_in(command, _Frames(reader, received)))
    left = asyncio.ensure_future(hung_up.wait())
    tasks = (outward, inward, left)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if outward.done():
            await outward
            return True
        if inward.done():
            await inward
        return False
    except _ClientGone:
        return False
    except _BadFrame as problem:
        await _say_error(writer, "bad_request", str(problem), "")
    except BoxError as problem:
        await _say_error(writer, problem.code, problem.message, problem.fix)
    except Exception:
        log.exception("exec stream failed")
        await _say_error(writer, "internal", "the exec stream failed", "see the controller's log")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return False


async def _pump_out(command: Command, writer: asyncio.StreamWriter) -> None:
    kinds = {"stdout": wire.STDOUT, "stderr": wire.STDERR}
    while True:
        stream, data = await command.read()
        if stream == "end":
            break
        for start in range(0, len(data), wire.PAYLOAD_MAX):
            piece = data[start : start + wire.PAYLOAD_MAX]
            await _send(writer, kinds[stream], piece)
    # The end of a connection waits for no reader, so here it is waited for that a client which
    # pauses (in a pager, say) has taken everything.
    writer.transport.set_write_buffer_limits(high=0)
    end = await command.wait()
    if end.kind == "lost":
        await _say_error(
            writer,
            "lost",
            "the sandbox stopped or its channel broke while the command ran",
            "box describe NAME shows what happened",
        )
        return
    result = {
        "kind": end.kind,
        "value": end.value,
        "status": end.shell_status,
        "message": end.message,
        "limit": command.seconds,
    }
    await _send(writer, wire.EXIT, json.dumps(result).encode())


async def _send(writer: asyncio.StreamWriter, kind: int, payload: bytes) -> None:
    try:
        writer.write(wire.frame(kind, payload))
        await writer.drain()
    except OSError as problem:
        raise _ClientGone from problem


async def _say_error(writer: asyncio.StreamWriter, code: str, message: str, fix: str) -> None:
    body = json.dumps({"code": code, "message": message, "fix": fix}).encode()
    with contextlib.suppress(_ClientGone, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await _send(writer, wire.ERROR, body[: wire.PAYLOAD_MAX])


class _Frames:
    """Frames from a client, each bounded; end-of-file in any place means the client left."""

    def __init__(self, reader: asyncio.StreamReader, received: bytes) -> None:
        self._reader = reader
        self._received = received

    async def _take(self, count: int) -> bytes:
        head, self._received = self._received[:count], self._received[count:]
        if len(head) == count:
            return head
        try:
            return head + await self._reader.readexactly(count - len(head))
        except (asyncio.IncompleteReadError, OSError) as problem:
            raise _ClientGone from problem

    async def next(self) -> tuple[int, bytes]:
        kind, length = wire.HEADER.unpack(await self._take(wire.HEADER.size))
        if length > wire.PAYLOAD_MAX:
            raise _BadFrame(f"a frame of {length} bytes; the limit is {wire.PAYLOAD_MAX}")
        return kind, await self._take(length)


async def _pump_in(command: Command, frames: _Frames) -> None:
    """Forward input until the client leaves (_ClientGone) or breaks the protocol (_BadFrame)."""
    reads_input = True
    while True:
        kind, payload = await frames.next()
        if kind == wire.KILL:
            if len(payload) != 1 or not 1 <= payload[0] <= 64:
                raise _BadFrame("a kill frame is one byte, the signal's number")
            with contextlib.suppress(BoxError, OSError):
                await command.kill(payload[0])
        elif kind not in (wire.STDIN, wire.STDIN_EOF):
            raise _BadFrame(f"frame kind {kind}; 1 (stdin), 2 (its end) and 7 (kill) are known")
        elif reads_input:
            try:
                if kind == wire.STDIN:
                    await command.write(payload)
                else:
                    await command.close_stdin()
            except (BoxError, OSError):
                # The command closed its input or has ended: the rest goes nowhere, as into a pipe
                # that nobody reads, and how it ended is told by the output side.
                reads_input = False


async def _put_down(command: Command) -> None:
    with contextlib.suppress(BoxError, OSError, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await command.abandon()


@contextlib.contextmanager
def _hangup_of(writer: asyncio.StreamWriter) -> Iterator[asyncio.Event]:
    """An event set once the peer has closed, also while neither direction moves.

    A stream that waits for its reader has stopped reading, so end-of-file would be seen only after
    the bytes before it. EPOLLHUP is reported without being asked for (epoll_ctl(2)), and an epoll
    descriptor can itself be watched.
    """
    happened = asyncio.Event()
    loop = asyncio.get_running_loop()
    with select.epoll() as watch:
        descriptor = watch.fileno()

        def hung_up() -> None:
            loop.remove_reader(descriptor)
            happened.set()

        peer = writer.get_extra_info("socket")
        if peer.fileno() < 0:
            happened.set()
        else:
            watch.register(peer.fileno(), 0)
        loop.add_reader(descriptor, hung_up)
        try:
            yield happened
        finally:
            loop.remove_reader(descriptor)
