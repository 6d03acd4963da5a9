"""Clients that are slow, broken, foreign or malicious: they are refused and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controller.httpconn import Limits
from tests.unit.cli.hostservice import serving

pytestmark = pytest.mark.quiet  # limits of half a second, and nobody else is to wait for longer
QUICK = Limits(head_seconds=0.5, body_seconds=0.5, reply_seconds=0.5, connections=8)


async def raw(path: Path, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Everything the server answers to these bytes, until it closes."""

    def talk() -> bytes:
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(ConnectionError):
            client.settimeout(10)
            client.connect(str(path))
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    client.sendall(piece)
                    time.sleep(pause)
            answer = bytearray()
            with contextlib.suppress(ConnectionError):
                while data := client.recv(65536):
                    answer += data
        return bytes(answer)

    return await asyncio.to_thread(talk)


async def still_serves(path: Path) -> None:
    """A good request is answered quickly."""
    started = time.monotonic()
    answer = await raw(path, b"GET /v1/version HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert time.monotonic() - started < 1.0


async def test_slow_heads_are_cut_off_and_delay_nobody(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path, QUICK):
        drips = [b"GET /v1/version HTTP/1.1\r\n"] + [b"X-%d: 1\r\n" % n for n in range(20)]
        slow = [asyncio.ensure_future(raw(path, *drips, pause=0.1)) for _ in range(5)]
        await asyncio.sleep(0.2)
        await still_serves(path)
        started = time.monotonic()
        for answer in await asyncio.gather(*slow):
            assert answer.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - started < 3.0


async def test_an_idle_connection_is_closed_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path, QUICK):
        assert await raw(path) == b""


async def test_a_body_that_stops_half_way_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "s"
    head = b"PUT /v1/sandboxes/fern HTTP/1.1\r\nHost: b\r\nContent-Length: 1000\r\n\r\nname"
    async with serving(path, QUICK) as service:
        assert (await raw(path, head)).startswith(b"HTTP/1.1 408 ")
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.write(head)
        writer.close()  # a client that leaves in the middle of its body
        await asyncio.sleep(0.1)
        await still_serves(path)
        assert service.applied == {}


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 30_000 + b"\r\n", b"431"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS?\r\n\r\n", b"400"),
        (b"\0" * 1000 + b"\r\n\r\n", b"400"),
        (b"PUT / HTTP/1.1\r\nHost: b\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"PUT / HTTP/1.1\r\nHost: b\r\nContent-Length: -1\r\n\r\n", b"400"),
        (
            b"PUT / HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"400",
        ),
        (b"PUT / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
    ],
)
async def test_heads_that_are_too_large_or_garbage_are_refused(
    tmp_path: Path, sent: bytes, status: bytes
) -> None:
    path = tmp_path / "s"
    async with serving(path, QUICK):
        answer = await raw(path, sent)
        assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
        await still_serves(path)


async def test_a_chunked_body_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    head = b"PUT /v1/sandboxes/x HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    async with serving(path, Limits(body_bytes=1024 * 1024)):
        answer = await raw(path, head, *[chunk] * 40)
        assert b" 413 " in answer.split(b"\r\n")[0]
        await still_serves(path)


async def test_a_client_that_never_reads_its_answers_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path, QUICK):
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        client.connect(str(path))
        request = b"GET /v1/sandboxes HTTP/1.1\r\nHost: b\r\n\r\n"
        deadline = time.monotonic() + 10
        dropped = False
        while not dropped and time.monotonic() < deadline:
            try:
                client.send(request * 100)
            except BlockingIOError:
                await asyncio.sleep(0.05)
            except OSError:
                dropped = True
            await asyncio.sleep(0)
        client.close()
        assert dropped
        await still_serves(path)


async def test_too_many_connections_are_refused_and_the_rest_go_on(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path, Limits(connections=8, head_seconds=5)):
        held = [await asyncio.open_unix_connection(str(path)) for _ in range(8)]
        await asyncio.sleep(0.1)
        assert (await raw(path, b"GET /v1/version HTTP/1.1\r\nHost: b\r\n\r\n")).startswith(
            b"HTTP/1.1 503 "
        )
        held[0][1].write(b"GET /v1/version HTTP/1.1\r\nHost: b\r\n\r\n")
        assert (await held[0][0].readline()).startswith(b"HTTP/1.1 200 ")
        for _, writer in held:
            writer.close()
        await asyncio.sleep(0.1)
        await still_serves(path)


STRANGER = """
import os, socket, sys
os.fchdir(int(sys.argv[1]))
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
client = socket.socket(socket.AF_UNIX)
client.settimeout(5)
try:
    client.connect("s")
except PermissionError:
    print("kernel refused")
    sys.exit()
print(client.recv(65536).decode())
"""


@pytest.mark.needs_root
async def test_another_user_is_refused_by_mode_and_by_peer_check(tmp_path: Path) -> None:
    path = tmp_path / "s"
    # The stranger gets the folder as a descriptor, so that only the socket itself stands in its
    # way.
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    os.fchmod(folder, 0o755)
    try:
        async with serving(path):

            def stranger() -> str:
                return subprocess.run(
                    [sys.executable, "-I", "-c", STRANGER, str(folder)],
                    stdout=subprocess.PIPE,
                    text=True,
                    pass_fds=[folder],
                    timeout=20,
                    check=True,
                ).stdout

            assert "kernel refused" in await asyncio.to_thread(stranger)
            path.chmod(0o666)  # as if somebody had widened it
            answer = await asyncio.to_thread(stranger)
            assert answer.startswith("HTTP/1.1 403 ")
            assert "forbidden" in answer and "run it as root" in answer
            assert "instance" not in answer
            await still_serves(path)
    finally:
        os.close(folder)
