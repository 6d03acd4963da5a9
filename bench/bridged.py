"""What a guest sends and receives over its bridged network, over QEMU started by hand with a tap.

Both guests have one kernel, one virtual card and one peer: a program on the far side of a veth, in
a lab of network namespaces without an uplink. The tap of the yardstick lies in the lab's host
itself, which forwards what comes out of it: no bridge, no second namespace, no rules. The peer
takes the time, so the channels of neither are in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from agent.client import AgentClient
from agent.messages import ExecRequest
from bench import transfers
from bench.bare import FIRST_SPARE, Bare
from bench.line import RUNNING
from bench.measure import Row
from bench.transfers import Side
from reconcilers import backend
from reconcilers.network import spaces
from tests.vm.netlab import PUBLIC4, UP4, Lab, NetHome, ip, net_home

# The guest's nc sends in pieces of a kilobyte, which takes an emulated one ten times as long.
RECEIVED_MIB, SENT_MIB = 64, 8
PAIRS = 11  # at least: a transfer takes seconds, and whatever else runs hits one or the other
PORT = 7777
SECONDS = 120.0  # for one transfer, and for a guest to begin it
TAP, GATEWAY, GUEST = "bare0", "10.88.0.1", "10.88.0.2"
# include/uapi/linux/if_tun.h, and asm-generic/ioctls.h: bytes that the peer has not acknowledged
_TUNSETIFF, _TAP_FLAGS = 0x400454CA, 0x0002 | 0x1000 | 0x4000
_TIOCOUTQ = 0x5411
Peer = Callable[[socket.socket], float]


def bridged(repeat: int) -> list[Row]:
    """Over TCP to the guest and from it; interleaved pairs, each way."""
    with net_home() as home:
        home.put("bridged", f"{RUNNING}network: bridge\n")
        home.ready("bridged")
        return asyncio.run(_measured(home, repeat))


async def _measured(home: NetHome, repeat: int) -> list[Row]:
    like = Bare.like(home, "bridged")
    with _tap(home.lab) as tap, _listening(home.lab) as listener:
        async with like.booted({backend.TAP_FD: tap}) as vm:
            assert await vm.client.set_network(_told(like)) == ""

            async def ours(script: str, peer: Peer) -> float:
                command = asyncio.to_thread(home.run, "bridged", "sh", "-c", script)
                return await _moved(command, listener, peer)

            async def bare(script: str, peer: Peer) -> float:
                return await _moved(_run(vm.client, script), listener, peer)

            rows: list[Row] = []
            gets = f"nc {PUBLIC4} {PORT} </dev/null >/dev/null"
            gives = f"head -c {SENT_MIB << 20} /dev/zero | nc {PUBLIC4} {PORT}"
            for what, mib, script, peer in (
                ("received", RECEIVED_MIB, gets, _sends),
                ("sent", SENT_MIB, gives, _receives),
            ):
                one = Side(partial(ours, script, peer), transfers.members(home, "bridged"))
                other = Side(partial(bare, script, peer), (vm.pid,))
                rows += await transfers.pairs("bridged", what, mib, one, other, max(repeat, PAIRS))
            return rows


async def _moved(
    command: Coroutine[Any, Any, object], listener: socket.socket, peer: Peer
) -> float:
    """Seconds as the peer saw them; `command` is what the guest runs."""
    running = asyncio.ensure_future(command)
    seconds = await asyncio.to_thread(_transfer, listener, peer)
    await running
    return seconds


def _transfer(listener: socket.socket, peer: Peer) -> float:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(SECONDS)
        return peer(connection)


def _sends(connection: socket.socket) -> float:
    """Seconds until the guest has acknowledged everything."""
    payload = bytes(1 << 20)
    begun = time.monotonic()
    for _ in range(RECEIVED_MIB):
        connection.sendall(payload)
    while struct.unpack("=i", fcntl.ioctl(connection, _TIOCOUTQ, bytes(4)))[0]:
        assert time.monotonic() - begun < SECONDS, "the guest stopped receiving"
        time.sleep(0.001)
    return time.monotonic() - begun


def _receives(connection: socket.socket) -> float:
    """Seconds from the first byte to the last."""
    left = (SENT_MIB << 20) - len(connection.recv(1 << 20))
    begun = time.monotonic()
    while left > 0:
        piece = connection.recv(1 << 20)
        assert piece, f"{left} bytes are missing"
        left -= len(piece)
    return time.monotonic() - begun


async def _run(client: AgentClient, script: str) -> None:
    argv = tuple(word.encode() for word in ("sh", "-c", script))
    process = await client.exec(ExecRequest(argv, {b"PATH": b"/bin:/sbin:/usr/bin"}))
    how, _, said = await process.collect()
    assert (how.kind, how.value) == ("exit", 0), (how, said)


@contextlib.contextmanager
def _listening(lab: Lab) -> Iterator[socket.socket]:
    def listen() -> socket.socket:
        return socket.create_server((PUBLIC4, PORT))

    with spaces.inside(lab.world, listen) as listener:
        listener.settimeout(SECONDS)
        yield listener


@contextlib.contextmanager
def _tap(lab: Lab) -> Iterator[int]:
    """A tap with an address of the host's on it; the descriptor, at a number QEMU spares."""

    def opened() -> int:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", TAP.encode(), _TAP_FLAGS))
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE)
        os.close(descriptor)
        return high

    descriptor = spaces.inside(lab.host, opened)
    try:
        ip("addr", "add", f"{GATEWAY}/30", "dev", TAP, namespace=lab.host)
        ip("link", "set", TAP, "up", namespace=lab.host)
        ip("route", "add", f"{GUEST}/32", "via", UP4, namespace=lab.world)
        yield descriptor
    finally:
        os.close(descriptor)


def _told(like: Bare) -> bytes:
    """What the guest's agent is told of its network: the body of NETWORK in agent/PROTOCOL.md."""
    (card,) = [word for word in like.argv if word.startswith("virtio-net-device,")]
    mac = card.partition("mac=")[2]
    lines = [f"mac={mac}", "mtu=1500", f"address4={GUEST}/30", f"gateway4={GATEWAY}"]
    return "".join(f"{line}\n" for line in [*lines, "address6=fd88::2/112"]).encode()
