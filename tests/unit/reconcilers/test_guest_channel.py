"""A guest that is given up gets its port back: the next attempt would find it taken for ever. The
guest is a script, all else is the real thing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent import codec
from agent.codec import ToHost
from reconcilers import procfs, sockets, steps
from reconcilers.accel import Choice
from reconcilers.act import Actor
from reconcilers.guest import open_channel
from reconcilers.launchrecord import LaunchRecord
from reconcilers.live import Live
from reconcilers.mounts import Rules
from specs.boxfile import Boxfile
from specs.conditions import Reason
from tests.unit.reconcilers.hosts import host_in

BOOT_ID = "11111111-2222-4333-8444-555555555555"
HELLO = (
    f"protocol=1\nagent=a\nkernel={platform.release()}\nmachine=m\nboot_id={BOOT_ID}\n"
    "root=overlay\ndata=none\ncapabilities=exec mount\n"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="box-") as made:  # short: a socket's path is
        yield Path(made)


def actor_in(folder: Path) -> Actor:
    host = host_in(folder)
    host.layout.sandbox_runtime("web").mkdir(parents=True)
    shared = [{"host": "/srv", "guest": "/srv"}]
    box = Boxfile.model_validate({"name": "web", "mounts": shared})
    us = procfs.read_stat(os.getpid())
    exe = procfs.executable(os.getpid())
    assert us is not None and exe is not None
    record = LaunchRecord(
        key="", token="00" * 32, accel="tcg", uid=1, gid=1, kernel_sha256="",
        kernel_release=platform.release(), initramfs_sha256="", image_sha256="",
        host_boot_id=procfs.host_boot_id(), started="", argv=("python",), data_bytes=0,
        pid=os.getpid(), start_time=us.start_time, exe=exe, guest_boot_id=BOOT_ID,
    )  # fmt: skip
    return Actor(
        host,
        "web",
        box,
        Choice("tcg", Reason.SoftwareEmulation, ""),
        Live(record),
        lambda name, pid: None,
        lambda name: None,
        lambda: Rules(()),
        lambda name: contextlib.nullcontext(),
    )


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The guest's side of the handshake."""
    await reader.readexactly(len(codec.RESYNC))
    hello = await reader.readexactly(codec.HEADER.size + 54)
    nonce = hello[codec.HEADER.size :][: codec.NONCE_SIZE]
    writer.write(codec.SYNC_MARK + nonce)
    writer.write(codec.encode(ToHost.HELLO_ACK, 0, HELLO.encode()))


async def test_connection_is_closed_when_its_mounts_are_given_up(folder: Path) -> None:
    actor = actor_in(folder)
    asked, closed = asyncio.Event(), asyncio.Event()

    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeted(reader, writer)
        await reader.readexactly(codec.HEADER.size)
        asked.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        closed.set()

    path = folder / "run" / "web" / "agent.sock"
    listener = sockets.listen(path)
    listener.setblocking(False)
    async with await asyncio.start_unix_server(guest, sock=listener), asyncio.timeout(60):
        connecting = asyncio.create_task(
            actor.act(steps.ConnectGuest("guest", "answering", "not connected"))
        )
        await asked.wait()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await closed.wait()
    assert actor.live is not None and actor.live.client is None


async def test_connection_is_closed_when_the_guest_cannot_be_remembered(folder: Path) -> None:
    actor = actor_in(folder)
    assert actor.live is not None
    layout, record = host_in(folder).layout, replace(actor.live.record, guest_boot_id="")
    layout.launch_record("web").mkdir()  # nothing can be written there, as on a full disk
    closed = asyncio.Event()

    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greeted(reader, writer)
        for _ in range(2):  # fresh randomness, and the time
            kind, _, _, stream, size = codec.HEADER.unpack(
                await reader.readexactly(codec.HEADER.size)
            )
            await reader.readexactly(size + 1)
            assert kind == codec.ToGuest.REQUEST
            writer.write(codec.encode(ToHost.REPLY, stream, b"\0"))
        assert await reader.read() == b""
        writer.close()
        closed.set()

    listener = sockets.listen(layout.agent_socket("web"))
    listener.setblocking(False)
    async with await asyncio.start_unix_server(guest, sock=listener), asyncio.timeout(20):
        with pytest.raises(OSError):
            await open_channel(layout, "web", record)
        await closed.wait()
