"""The exec stream: bytes exact, ends exact, memory bounded, and no command outlives its client.

Commands are real processes of this host; what they run in does not matter to the stream.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller import execframes as wire
from tests.unit.cli.hostservice import VM_DIES, HostService, serving

MIB = 1024 * 1024


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[tuple[HostService, Path]]:
    path = tmp_path / "box.sock"
    async with serving(path) as service:
        yield service, path


class Client:
    """The other side of the stream, written from its description alone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def start(
        cls, path: Path, *argv: str | bytes, name: str = "agent", **more: Any
    ) -> Client:
        words = [b64encode(os.fsencode(word)).decode() for word in argv]
        body = json.dumps({"argv_b64": words, **more}).encode()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(
            f"POST /v1/sandboxes/{name}/exec HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\n"
            f"Upgrade: box-exec/1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return cls(reader, writer)

    async def accepted(self) -> Client:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 101 "), head
        return self

    async def refusal(self) -> tuple[int, dict[str, str]]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        body = await self.reader.readexactly(length)
        return int(head.split()[1]), json.loads(body)["error"]

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.writer.write(bytes([kind]) + len(payload).to_bytes(4, "big") + payload)

    async def frame(self) -> tuple[int, bytes]:
        head = await asyncio.wait_for(self.reader.readexactly(5), 20)
        return head[0], await self.reader.readexactly(int.from_bytes(head[1:], "big"))

    async def collect(self) -> tuple[bytes, bytes, dict[str, Any]]:
        """stdout, stderr and the last frame, whose `frame` says its kind."""
        out = {wire.STDOUT: bytearray(), wire.STDERR: bytearray()}
        while True:
            kind, payload = await self.frame()
            if kind in out:
                out[kind] += payload
                continue
            assert await self.reader.read() == b"", "something came after the last frame"
            self.writer.close()
            last = {"frame": kind, **json.loads(payload)}
            return bytes(out[wire.STDOUT]), bytes(out[wire.STDERR]), last


async def run(path: Path, *argv: str | bytes, **more: Any) -> tuple[bytes, bytes, dict[str, Any]]:
    return await (await (await Client.start(path, *argv, **more)).accepted()).collect()


async def ended(pid: int, within: float = 3.0) -> bool:
    """Whether the process is gone (or a zombie that asyncio is about to reap)."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if state_of(pid) in ("", "Z"):
            return True
        await asyncio.sleep(0.02)
    return False


def state_of(pid: int) -> str:
    """The process state of proc(5), empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def started(service: HostService) -> int:
    for _ in range(200):
        if service.commands:
            return service.commands[-1].pid
        await asyncio.sleep(0.01)
    raise AssertionError("no command was started")


# -- bytes and ends -------------------------------------------------------------------------------


async def test_bytes_of_both_streams_arrive_exactly(api: tuple[HostService, Path]) -> None:
    script = (
        r"printf '\377\000\r\n\201'; printf '\342\202'; sleep 0.1; printf '\254' ; printf e >&2"
    )
    out, err, last = await run(api[1], "sh", "-c", script)
    assert out == b"\xff\x00\r\n\x81\xe2\x82\xac"
    assert err == b"e"
    assert (last["kind"], last["value"], last["status"]) == ("exit", 0, 0)


@pytest.mark.parametrize(
    ("argv", "kind", "value", "status"),
    [
        (("sh", "-c", "exit 7"), "exit", 7, 7),
        (("sh", "-c", "exit 255"), "exit", 255, 255),
        (("sh", "-c", "kill -9 $$"), "signal", 9, 137),
        (("sh", "-c", "kill -SEGV $$"), "signal", 11, 139),
        (("/no/such/program",), "not_found", 2, 127),
        (("/etc/passwd",), "not_executable", 13, 126),
    ],
)
async def test_ends_are_told_as_they_were(
    api: tuple[HostService, Path], argv: tuple[str, ...], kind: str, value: int, status: int
) -> None:
    _, _, last = await run(api[1], *argv)
    assert last["frame"] == wire.EXIT
    assert (last["kind"], last["value"], last["status"]) == (kind, value, status)


async def test_a_timeout_is_its_own_end(api: tuple[HostService, Path]) -> None:
    _, _, last = await run(api[1], "sleep", "100", timeout_ms=200)
    assert (last["kind"], last["status"]) == ("timeout", 124)


async def test_a_vm_that_dies_is_an_error_and_never_an_exit(api: tuple[HostService, Path]) -> None:
    out, _, last = await run(api[1], VM_DIES)
    assert out == b"half"
    assert (last["frame"], last["code"]) == (wire.ERROR, "lost")
    assert "status" not in last


async def test_argv_env_and_odd_bytes_reach_the_command_unchanged(
    api: tuple[HostService, Path],
) -> None:
    words = [b"", b"two words", b"new\nline", b"$(id)", b"'\"", b"\xff\xfe"]
    out, _, _ = await run(api[1], "printf", "<%s>", *words, env={"K": "v=\udcff"})
    assert out == b"".join(b"<" + word + b">" for word in words)
    out, _, _ = await run(api[1], "sh", "-c", 'printf %s "$K"', env={"K": "v=\udcff"})
    assert out == b"v=\xff"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"argv": []},
        {"argv": ["a"], "argv_b64": ["YQ=="]},
        {"argv_b64": ["no base64!"]},
        {"argv": [""]},
        {"argv": ["a\0b"]},
        {"argv": ["\ud800"]},
        {"argv": "ls"},
        {"argv": [1]},
        {"argv": ["a"], "env": {"A=B": "c"}},
        {"argv": ["a"], "env": ["A=B"]},
        {"argv": ["a"], "stdin": 1},
        {"argv": ["a"], "timeout_ms": -1},
        {"argv": ["a"], "timeout_ms": True},
        {"argv": ["a"], "cwd": 5},
        {"argv": ["a"], "shell": True},
    ],
)
async def test_requests_with_mistakes_start_nothing(
    api: tuple[HostService, Path], body: dict[str, Any]
) -> None:
    service, path = api
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(
        b"POST /v1/sandboxes/agent/exec HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\n"
        b"Upgrade: box-exec/1\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    )
    status, error = await Client(reader, writer).refusal()
    writer.close()
    assert (status, error["code"]) == (400, "bad_request")
    assert service.commands == []


async def test_refusals_come_before_the_stream(api: tuple[HostService, Path]) -> None:
    down = await Client.start(api[1], "true", name="down")
    assert (await down.refusal())[1]["code"] == "not_up"
    nobody = await Client.start(api[1], "true", name="nobody")
    assert (await nobody.refusal())[0] == 404
    for one in (down, nobody):
        one.writer.close()


# -- input ----------------------------------------------------------------------------------------


async def test_input_and_output_at_once_do_not_deadlock(api: tuple[HostService, Path]) -> None:
    client = await (await Client.start(api[1], "cat", stdin=True)).accepted()
    sent = hashlib.sha256()

    async def feed() -> None:
        for number in range(640):
            piece = number.to_bytes(2, "big") * 32768
            sent.update(piece)
            client.send(wire.STDIN, piece)
            await client.writer.drain()
        client.send(wire.STDIN_EOF)

    feeding = asyncio.ensure_future(feed())
    out, _, last = await client.collect()
    await feeding
    assert len(out) == 640 * 65536
    assert hashlib.sha256(out).digest() == sent.digest()
    assert last["status"] == 0


async def test_input_for_a_command_that_stopped_reading_goes_nowhere(
    api: tuple[HostService, Path],
) -> None:
    argv = ("sh", "-c", "exec <&-; sleep 0.3; exit 3")
    client = await (await Client.start(api[1], *argv, stdin=True)).accepted()
    for _ in range(64):
        client.send(wire.STDIN, b"x" * 65536)
    _, _, last = await client.collect()
    assert last["status"] == 3


async def test_a_signal_reaches_the_command(api: tuple[HostService, Path]) -> None:
    script = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    client = await (await Client.start(api[1], "sh", "-c", script)).accepted()
    assert await client.frame() == (wire.STDOUT, b"ready\n")
    client.send(wire.KILL, b"\x02")
    out, _, last = await client.collect()
    assert out == b"caught\n"
    assert last["status"] == 5


@pytest.mark.parametrize(
    "sent",
    [
        b"\x01\xff\xff\xff\xff",
        b"\x01\x00\x01\x00\x01",
        b"\x09\x00\x00\x00\x00",
        b"\x03\x00\x00\x00\x01x",
        b"\x07\x00\x00\x00\x01\x00",
        b"\x07\x00\x00\x00\x02\x09\x09",
    ],
)
async def test_a_client_that_breaks_the_protocol_loses_its_command(
    api: tuple[HostService, Path], sent: bytes
) -> None:
    service, path = api
    client = await (await Client.start(path, "sleep", "1000", stdin=True)).accepted()
    client.writer.write(sent)
    _, _, last = await client.collect()
    assert (last["frame"], last["code"]) == (wire.ERROR, "bad_request")
    assert await ended(service.commands[0].pid)


# -- slow and vanished clients --------------------------------------------------------------------

FLOOD = "i=0; while [ $i -lt 100 ]; do cat {f}; cat {f} >&2; i=$((i+1)); done"


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


async def test_a_client_that_never_reads_and_leaves_takes_its_command_along(
    api: tuple[HostService, Path],
) -> None:
    service, path = api
    client = await Client.start(path, "cat", "/dev/zero")
    pid = await started(service)
    await asyncio.sleep(0.5)
    taken = service.commands[0].taken
    assert taken < 2 * MIB
    await asyncio.sleep(0.3)
    assert service.commands[0].taken == taken, "output is taken although nobody reads it"
    begun = time.monotonic()
    assert (await run(path, "echo", "ok"))[0] == b"ok\n"
    assert time.monotonic() - begun < 1.0
    client.writer.transport.abort()
    assert await ended(pid)


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
        assert await ended(pid, within=0.5)
        client.writer.close()


async def test_streams_leave_no_descriptor_and_no_task(api: tuple[HostService, Path]) -> None:
    await run(api[1], "true")
    descriptors, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    for _ in range(20):
        await run(api[1], "true")
        client = await (await Client.start(api[1], "sleep", "9")).accepted()
        client.writer.close()
    await asyncio.sleep(0.3)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(asyncio.all_tasks()) <= tasks


def resident() -> int:
    """Bytes of this process in memory (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
