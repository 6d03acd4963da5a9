"""The first exchange on a connection: find the guest's answer behind what an earlier one left.

It must not start tasks or keep the connection: that is the client's work once hello is answered.
"""

from __future__ import annotations

import asyncio
import os

from agent import messages
from agent.codec import RESYNC, Decoder, SyncFinder, ToHost
from agent.messages import Hello
from specs.errors import ChannelError, ProtocolError

READ_SIZE = 128 * 1024


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, *, first: bool
) -> tuple[Hello, Decoder]:
    """Send hello and wait for its answer, without a time limit of its own.

    Raises ChannelError when the guest refuses or the connection ends, ProtocolError for nonsense.
    """
    nonce = os.urandom(16)
    finder, decoder = SyncFinder(nonce), Decoder()
    writer.write(RESYNC + messages.hello(nonce, token, first=first))
    await writer.drain()
    rest: bytes | None = None
    while rest is None:
        rest = finder.feed(await some(reader))
    frames = list(decoder.feed(rest))
    while not frames:
        frames = list(decoder.feed(await some(reader)))
    answer = frames[0]
    if answer.stream != 0 or len(frames) > 1:
        raise ProtocolError("the guest speaks before it was asked")
    if answer.type == ToHost.REFUSED:
        raise ChannelError(messages.parse_refusal(answer.payload))
    if answer.type != ToHost.HELLO_ACK:
        raise ProtocolError("the guest answers hello with something else")
    return messages.parse_hello(answer.payload), decoder


async def some(reader: asyncio.StreamReader) -> bytes:
    """What has arrived, at least one byte. Raises ChannelError at the end of the connection."""
    data = await reader.read(READ_SIZE)
    if not data:
        raise ChannelError("the agent's channel was closed by the other side")
    return data
