"""QMP with a VMM that is an enemy: whatever it answers ends as a value or as a ChannelError."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from reconcilers import qmp
from specs.errors import ChannelError

VERSION = {"qemu": {"micro": 0, "minor": 2, "major": 7}, "package": ""}
GREETING = json.dumps({"QMP": {"version": VERSION, "capabilities": ["oob"]}}).encode()


@asynccontextmanager
async def vmm(path: Path, answer: bytes) -> AsyncIterator[None]:
    """A monitor that answers every command but the first with `answer`; ID stands for its id."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING + b"\n")
        while received := await reader.read(65536):
            asked = json.loads(received)
            first = asked["execute"] == "qmp_capabilities"
            reply = b'{"return": {}}' if first else answer
            number = json.dumps(asked.get("id")).encode()
            writer.write(reply.replace(b"ID", number) + b"\n")
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    os.chmod(path, 0o600)
    try:
        yield
    finally:
        server.close()


def returning(value: object) -> bytes:
    return b'{"return": ' + json.dumps(value).encode() + b', "id": ID}'


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"running": True, "status": "running"}, ""),
        ({"running": False, "status": "io-error"}, "io-error"),
        ({"running": "yes"}, "unknown"),
        ({"status": ""}, "unknown"),
        ({"status": "\x1b[2Jred"}, "\\x1b[2Jred"),
    ],
)
async def test_pause_reason_is_short_printable_text(
    tmp_path: Path, status: object, reason: str
) -> None:
    async with vmm(tmp_path / "qmp.sock", returning(status)):
        assert await qmp.pause_reason(tmp_path / "qmp.sock") == reason


async def test_pause_reason_of_a_megabyte_is_cut(tmp_path: Path) -> None:
    async with vmm(tmp_path / "qmp.sock", returning({"status": "B" * 1_000_000})):
        assert len(await qmp.pause_reason(tmp_path / "qmp.sock")) < 100


@pytest.mark.parametrize(
    "answer",
    [
        returning(["running"]),
        returning(None),
        returning("running"),
        b"[" * 200_000,
        b"a" * 11_000_000,
        b"\xff\xfe",
        b"17",
    ],
    ids=["list", "null", "text", "deep", "long", "not UTF-8", "no object"],
)
async def test_nonsense_from_a_vmm_is_a_channel_error(tmp_path: Path, answer: bytes) -> None:
    async with vmm(tmp_path / "qmp.sock", answer):
        with pytest.raises(ChannelError):
            await qmp.pause_reason(tmp_path / "qmp.sock")


async def test_refusal_of_a_vmm_is_short_printable_text(tmp_path: Path) -> None:
    refusal = {"class": "GenericError", "desc": "\x1b]0;owned\x07" + "A" * 100_000}
    answer = b'{"error": ' + json.dumps(refusal).encode() + b', "id": ID}'
    async with vmm(tmp_path / "qmp.sock", answer):
        with pytest.raises(ChannelError) as caught:
            await qmp.run_on(tmp_path / "qmp.sock")
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500
