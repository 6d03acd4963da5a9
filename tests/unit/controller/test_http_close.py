"""The end of a connection to the API: what was written is flushed, and nobody is waited for."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from controller.httpconn import FLUSH_SECONDS, HttpConnection, Limits

DATA = bytes(range(256)) * 4096
"""1 MiB: more than the kernel takes of a Unix socket's writer at once."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def opened(ours: socket.socket) -> HttpConnection:
    reader, writer = await asyncio.open_connection(sock=ours)
    return HttpConnection(reader, writer, Limits())


def take(theirs: socket.socket) -> bytes:
    taken = b""
    while piece := theirs.recv(64 * 1024):
        taken += piece
    return taken


@pytest.mark.quiet  # it has FLUSH_SECONDS for it
def test_a_client_that_reads_late_gets_all_of_it(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair

    async def converse() -> bytes:
        connection = await opened(ours)
        connection.writer.write(DATA)
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0.1)  # all that the socket takes unread is written by then
        taken = await asyncio.to_thread(take, theirs)
        await closing
        return taken

    assert asyncio.run(converse()) == DATA


def test_a_client_that_does_not_read_is_left(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair

    async def leave() -> float:
        connection = await opened(ours)
        connection.writer.write(DATA)
        begun = time.monotonic()
        await connection.close()
        took = time.monotonic() - begun
        await asyncio.sleep(0)  # the transport closes its socket in the loop's next turn
        return took

    assert asyncio.run(leave()) >= FLUSH_SECONDS
    assert ours.fileno() == -1
    assert len(take(theirs)) < len(DATA)


def test_a_client_that_has_gone_is_no_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair

    async def leave() -> None:
        connection = await opened(ours)
        connection.writer.write(DATA)
        theirs.close()
        await connection.close()

    asyncio.run(leave())
    assert ours.fileno() == -1
