"""The exec stream: bytes exact, ends exact, and no request with mistakes starts anything.

Commands are real processes of this host; what they run in does not matter to the stream.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from controller import execframes as wire
from tests.unit.cli.hostservice import VM_DIES, HostService
from tests.unit.controller.execclient import Client, ended, run

MIB = 1024 * 1024


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
