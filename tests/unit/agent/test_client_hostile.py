"""The client against guests that lie: each can only break its own channel, and memory stays flat.

The peer here is a script, because no honest agent does any of this; honest behaviour is tested
against the real agent in tests/vm.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from agent import codec, messages
from agent.client import AgentClient, ExecRequest, GuestError, Process
from agent.codec import ToHost
from specs.errors import ChannelError, ProtocolError

TOKEN = bytes(32)
HELLO = (
    b"protocol=1\nagent=a\nkernel=k\nmachine=m\nboot_id=b\nroot=overlay\ndata=none\n"
    b"capabilities=exec\n"
)
ACK = codec.encode(ToHost.HELLO_ACK, 0, HELLO)
COMMAND = ExecRequest((b"true",), {})
Lie = Callable[["Guest"], Awaitable[None]]


@dataclass
class Guest:
    """The guest's end of the connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def greet(self, answer: bytes = ACK) -> None:
        await self.reader.readexactly(len(codec.RESYNC))
        hello = await self.reader.readexactly(codec.HEADER.size + 54)
        nonce = hello[codec.HEADER.size :][: codec.NONCE_SIZE]
        self.writer.write(codec.SYNC_MARK + nonce + answer)

    def say(self, kind: int, stream: int, payload: bytes = b"") -> None:
        self.writer.write(codec.encode(kind, stream, payload))

    async def request(self) -> None:
        header = await self.reader.readexactly(codec.HEADER.size)
        await self.reader.readexactly(codec.HEADER.unpack(header)[4] + 1)


@dataclass
class Pair:
    guest: Guest
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def connected(self) -> AgentClient:
        greeting = asyncio.create_task(self.guest.greet())
        client = await AgentClient.connect(
            self.reader, self.writer, token=TOKEN, first=False, timeout=60
        )
        await greeting
        return client


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    guest = Guest(*await asyncio.open_connection(sock=theirs))
    yield Pair(guest, reader, writer)
    writer.transport.abort()
    guest.writer.transport.abort()


async def broken(client: AgentClient) -> None:
    async with asyncio.timeout(60):
        await client.closed.wait()
    assert isinstance(client.failure, ProtocolError)
    with pytest.raises(ProtocolError):
        await client.ping()


# -- hello ----------------------------------------------------------------------------------------


async def test_silent_guest_is_a_channel_error_in_time(pair: Pair) -> None:
    with pytest.raises(ChannelError, match=r"silent for 0\.2 s"):
        await AgentClient.connect(pair.reader, pair.writer, token=TOKEN, first=True, timeout=0.2)


async def test_guest_that_drips_is_a_channel_error_in_time(pair: Pair) -> None:
    async def drip() -> None:
        while True:
            pair.guest.writer.write(b"x")
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    with pytest.raises(ChannelError, match="silent"):
        await AgentClient.connect(pair.reader, pair.writer, token=TOKEN, first=False, timeout=0.3)
    dripping.cancel()


async def test_guest_that_floods_before_hello_is_given_up(pair: Pair) -> None:
    async def flood() -> None:
        while True:
            pair.guest.writer.write(bytes(65536))
            await pair.guest.writer.drain()

    flooding = asyncio.create_task(flood())
    with pytest.raises(ProtocolError, match="does not answer"):
        await AgentClient.connect(pair.reader, pair.writer, token=TOKEN, first=False, timeout=60)
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)


@pytest.mark.parametrize(
    "answer",
    [
        b"\0" * 12,
        codec.encode(ToHost.REPLY, 1, b"\0"),
        codec.encode(ToHost.HELLO_ACK, 1, HELLO),
        codec.encode(ToHost.HELLO_ACK, 0, b"protocol=1\n"),
        ACK + codec.encode(ToHost.STDOUT, 1, b"x"),
        struct.pack(">BBHII", 0x81, 0, codec.MAGIC, 0, 0x7FFFFFFF),
    ],
)
async def test_nonsense_instead_of_hello_is_a_protocol_error(pair: Pair, answer: bytes) -> None:
    greeting = asyncio.create_task(pair.guest.greet(answer))
    with pytest.raises(ProtocolError):
        await AgentClient.connect(pair.reader, pair.writer, token=TOKEN, first=False, timeout=60)
    await greeting


async def test_replayed_answer_to_an_older_hello_is_not_accepted(pair: Pair) -> None:
    pair.guest.writer.write(codec.SYNC_MARK + bytes(16) + ACK)
    with pytest.raises(ChannelError, match="silent"):
        await AgentClient.connect(pair.reader, pair.writer, token=TOKEN, first=False, timeout=0.3)


# -- afterwards -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lie",
    [
        (ToHost.STDOUT, 77, b"x"),
        (ToHost.STDOUT, 0, b"x"),
        (ToHost.EXIT, 77, bytes(5)),
        (ToHost.REPLY, 77, b"\0"),
        (ToHost.REPLY, 1, b"\0"),
        (ToHost.CREDIT, 1, b"\0\0\0\0\1"),
        (ToHost.CREDIT, 1, b"\0\xff\xff\xff\xff"),
        (ToHost.CREDIT, 1, b""),
        (ToHost.STDOUT, 1, b""),
        (ToHost.EXIT, 1, b""),
        (ToHost.EXIT, 1, b"\0\0\0\1\0"),
        (ToHost.HELLO_ACK, 0, HELLO),
        (0x10, 1, b""),
        (0xFF, 1, b""),
    ],
)
async def test_lie_breaks_the_channel_and_the_command_is_lost(
    pair: Pair, lie: tuple[int, int, bytes]
) -> None:
    client = await pair.connected()
    process = await client.exec(COMMAND)
    pair.guest.say(*lie)
    await broken(client)
    assert (await process.wait()).kind == "lost"
    assert await process.read() == ("end", b"")
    await client.close()


async def test_a_thousand_streams_break_the_channel(pair: Pair) -> None:
    client = await pair.connected()
    for number in range(1, 1001):
        pair.guest.say(ToHost.STDOUT, number, b"x")
    await broken(client)


async def test_frame_after_the_end_of_its_stream_is_a_lie(pair: Pair) -> None:
    client = await pair.connected()
    process = await client.exec(COMMAND)
    pair.guest.say(ToHost.EXIT, 1, b"\0\0\0\0\3")
    assert (await process.wait()).shell_status == 3
    pair.guest.say(ToHost.STDOUT, 1, b"late")
    await broken(client)


async def test_output_beyond_credit_breaks_the_channel_and_memory_stays_flat(pair: Pair) -> None:
    client = await pair.connected()
    process = await client.exec(COMMAND)
    tracemalloc.start()
    try:
        for _ in range(1000):
            pair.guest.say(ToHost.STDOUT, 1, bytes(30_000))
            if client.closed.is_set():
                break
            await asyncio.sleep(0)
        await broken(client)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    received = 0
    while (piece := await process.read())[0] != "end":
        received += len(piece[1])
    assert received <= messages.OUTPUT_WINDOW


async def test_one_byte_frames_cost_no_more_than_their_bytes(pair: Pair) -> None:
    client = await pair.connected()
    process = await client.exec(COMMAND)
    tracemalloc.start()
    try:
        one = codec.encode(ToHost.STDOUT, 1, b"x") + codec.encode(ToHost.STDERR, 1, b"y")
        for _ in range(messages.OUTPUT_WINDOW // 1024):
            pair.guest.writer.write(one * 1024)
            await pair.guest.writer.drain()
        pair.guest.say(ToHost.EXIT, 1, bytes(5))
        await process.wait()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    await client.close()


async def read_all(process: Process) -> int:
    total = 0
    while (piece := await process.read())[0] != "end":
        total += len(piece[1])
    return total


async def test_endless_output_is_only_taken_as_fast_as_it_is_read(pair: Pair) -> None:
    client = await pair.connected()
    process = await client.exec(COMMAND)
    await pair.guest.request()
    for _ in range(8):
        pair.guest.say(ToHost.STDOUT, 1, bytes(32_768 - 13))
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await pair.guest.reader.readexactly(1)  # no credit while nobody reads
    for _ in range(4):
        await process.read()
    async with asyncio.timeout(20):
        header = codec.HEADER.unpack(await pair.guest.reader.readexactly(codec.HEADER.size))
    assert header[0] == codec.ToGuest.CREDIT
    await client.close()


async def test_abandoned_command_may_not_send_more_than_it_was_granted(pair: Pair) -> None:
    client = await pair.connected()
    process = await client.exec(COMMAND)
    await process.abandon()
    pair.guest.say(ToHost.STDOUT, 1, bytes(1000))
    for _ in range(8):
        pair.guest.say(ToHost.STDOUT, 1, bytes(32_768 - 13))
    await broken(client)


async def test_unanswered_questions_fail_in_time_and_are_bounded(pair: Pair) -> None:
    client = await pair.connected()
    with pytest.raises(ChannelError, match="did not answer ping"):
        await client.ping(0.1)
    results = await asyncio.gather(*(client.ping(0.5) for _ in range(100)), return_exceptions=True)
    assert all(isinstance(result, ChannelError) for result in results)
    assert client.closed.is_set()


async def test_resize_that_is_never_answered_ends_in_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pass waits for it, and with the pass everything that is to happen to its sandbox.
    monkeypatch.setattr("agent.client.RESIZE_SECONDS", 0.2, raising=False)
    client = await pair.connected()
    async with asyncio.timeout(30):  # half of what it would be
        with pytest.raises(ChannelError, match="did not answer resize"):
            await client.resize_data(1 << 30)
    assert not client.closed.is_set()
    await client.close()


async def test_late_answer_to_a_question_given_up_is_no_lie(pair: Pair) -> None:
    client = await pair.connected()
    with pytest.raises(ChannelError):
        await client.ping(0.1)
    pair.guest.say(ToHost.REPLY, 1, b"\0late")
    await asyncio.sleep(0.1)
    assert not client.closed.is_set()
    await client.close()


async def test_wrong_answer_to_ping_is_a_protocol_error(pair: Pair) -> None:
    client = await pair.connected()
    pair.guest.say(ToHost.REPLY, 1, b"\0wrong")
    with pytest.raises(ProtocolError):
        await client.ping(60)


async def test_reasons_from_the_guest_are_scrubbed(pair: Pair) -> None:
    client = await pair.connected()
    asking = asyncio.create_task(client.set_clock(0))
    await pair.guest.request()
    pair.guest.say(ToHost.REPLY, 1, b"\3\x1b]0;owned\x07" + b"x" * 5000)
    with pytest.raises(GuestError) as caught:
        await asking
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 700
    await client.close()


async def test_closed_connection_makes_everything_lost_at_once(pair: Pair) -> None:
    client = await pair.connected()
    process = await client.exec(ExecRequest((b"cat",), {}, stdin=True))
    asking = asyncio.create_task(client.ping(30))
    await asyncio.sleep(0.05)
    pair.guest.writer.transport.abort()
    async with asyncio.timeout(20):
        assert (await process.wait()).kind == "lost"
        with pytest.raises(ChannelError):
            await asking
        with pytest.raises(BrokenPipeError):
            await process.write(b"x")
        with pytest.raises(ChannelError):
            await client.exec(COMMAND)
        await process.kill(9)
        await process.abandon()


async def test_input_stops_at_the_guests_window(pair: Pair) -> None:
    client = await pair.connected()
    process = await client.exec(ExecRequest((b"cat",), {}, stdin=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await process.write(bytes(messages.STDIN_WINDOW + 1))
    pair.guest.say(ToHost.CREDIT, 1, b"\0\0\0\0\1")
    async with asyncio.timeout(20):
        await process.write(b"x")
    await client.close()
