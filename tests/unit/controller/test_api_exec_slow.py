"""The exec stream of clients that are slow, pause or vanish.

Commands are real processes of this host; what they run in does not matter to the stream.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from controller import execframes as wire
from controller.httpconn import FLUSH_SECONDS
from tests.unit.cli.hostservice import HostService, serving
from tests.unit.controller.execclient import Client, ended, run, settled, started, until

MIB = 1024 * 1024
FLOOD = "i=0; while [ $i -lt 100 ]; do cat {f}; cat {f} >&2; i=$((i+1)); done"


@pytest.mark.quiet
async def test_200_mb_on_both_streams_to_a_slow_reader_is_exact_and_bounded(
    api: tuple[HostService, Path], tmp_path: Path
) -> None:
    service, path = api
    piece = os.urandom(MIB)
    (tmp_path / "piece").write_bytes(piece)
    wanted = hashlib.sha256()
    for _ in range(100):
        wanted.update(piece)
    client = await Client.start(path, "sh", "-c", FLOOD.format(f=tmp_path / "piece"))
    await client.accepted()
    before = resident()
    peak, longest_echo, received = before, 0.0, 0
    hashes = {wire.STDOUT: hashlib.sha256(), wire.STDERR: hashlib.sha256()}
    pause_at = 0
    while (frame := await client.frame())[0] in hashes:
        hashes[frame[0]].update(frame[1])
        received += len(frame[1])
        if received >= pause_at:
            pause_at += 20 * MIB
            begun = time.monotonic()
            out, _, _ = await run(path, "echo", "ok")
            assert out == b"ok\n"
            longest_echo = max(longest_echo, time.monotonic() - begun)
            await asyncio.sleep(0.05)
            # What was taken from the command and not yet received here: our two ends of the socket.
            assert service.commands[0].taken - received < 2 * MIB
            peak = max(peak, resident())
    client.writer.close()
    assert json.loads(frame[1])["status"] == 0
    assert [one.hexdigest() for one in hashes.values()] == [wanted.hexdigest()] * 2
    assert peak - before < 16 * MIB
    assert longest_echo < 1.0


@pytest.mark.quiet
async def test_a_client_that_never_reads_and_leaves_takes_its_command_along(
    api: tuple[HostService, Path],
) -> None:
    service, path = api
    client = await Client.start(path, "cat", "/dev/zero")
    pid = await started(service)
    command = service.commands[0]
    await until(lambda: command.taken > 0, "some of its output is taken")
    # It settles at all: output is not taken on and on although nobody reads it.
    assert await settled(lambda: command.taken) < 2 * MIB
    begun = time.monotonic()
    assert (await run(path, "echo", "ok"))[0] == b"ok\n"
    assert time.monotonic() - begun < 1.0
    client.writer.transport.abort()
    assert await ended(pid)


async def test_a_client_that_pauses_before_the_end_loses_nothing_of_it(
    api: tuple[HostService, Path],
) -> None:
    """As `box exec NAME -- COMMAND | less` does; among the sizes are some of which only the end is
    still with the server when the command has ended.
    """
    path = api[1]
    sizes = [count * 32 * 1024 for count in range(1, 21)]
    clients = [await Client.start(path, "head", "-c", str(size), "/dev/zero") for size in sizes]
    await asyncio.sleep(FLUSH_SECONDS + 0.5)
    for client, size in zip(clients, sizes, strict=True):
        out, _, last = await (await client.accepted()).collect()
        assert len(out) == size
        assert (last["kind"], last["value"]) == ("exit", 0)


async def test_a_client_that_leaves_a_silent_command_ends_it(api: tuple[HostService, Path]) -> None:
    service, path = api
    client = await (await Client.start(path, "sleep", "1000")).accepted()
    pid = service.commands[0].pid
    client.writer.close()
    assert await ended(pid)
    assert service.commands[0].abandoned


async def test_a_client_that_leaves_while_its_input_is_stuck_ends_the_command(
    api: tuple[HostService, Path],
) -> None:
    """The server has stopped reading by then: end-of-file alone would be seen too late."""
    service, path = api
    client = await (await Client.start(path, "sleep", "1000", stdin=True)).accepted()
    for _ in range(16):
        client.send(wire.STDIN, b"x" * 65536)
    await asyncio.sleep(0.3)
    assert service.commands[0].stdin_taken < MIB
    client.writer.transport.abort()
    assert await ended(service.commands[0].pid)


async def test_a_client_that_leaves_before_the_command_starts_leaves_nothing(
    api: tuple[HostService, Path],
) -> None:
    service, path = api
    client = await Client.start(path, "sleep", "1000")
    await client.writer.drain()
    client.writer.transport.abort()
    assert await ended(await started(service))


async def test_closing_the_server_ends_every_command(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as service:
        clients = [
            await (await Client.start(tmp_path / "s", "sleep", "1000")).accepted() for _ in range(3)
        ]
        pids = [command.pid for command in service.commands]
    assert len(pids) == 3
    for pid, client in zip(pids, clients, strict=True):
        assert await ended(pid)
        client.writer.close()


async def test_streams_leave_no_descriptor_and_no_task(api: tuple[HostService, Path]) -> None:
    await run(api[1], "true")
    descriptors, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    for _ in range(20):
        await run(api[1], "true")
        client = await (await Client.start(api[1], "sleep", "1000")).accepted()
        client.writer.close()
    await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "no descriptor is left")
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left")


def resident() -> int:
    """Bytes of this process in memory (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
