"""The API's routes to disks: what they pass on, and what they refuse."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.hostservice import serving


async def ask(path: Path, method: str, where: str, body: object = None) -> tuple[int, Any]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {where} HTTP/1.1\r\nHost: box\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    answer = await reader.read()
    writer.close()
    top, _, text = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(text)


async def test_each_request_reaches_its_verb(tmp_path: Path) -> None:
    path, at = tmp_path / "box.sock", "/v1/sandboxes/down"
    async with serving(path) as service:
        status, found = await ask(path, "GET", f"{at}/snapshots")
        assert (status, found["snapshots"][0]["label"]) == (200, "first")
        assert (await ask(path, "POST", f"{at}/snapshots"))[1]["label"] == "2026-01-01-000000"
        assert (await ask(path, "POST", f"{at}/snapshots", {"label": "x"}))[0] == 201
        restored = await ask(path, "POST", f"{at}/restore", {"label": "x"})
        assert restored[1]["kept"] == "before-restore-2026-01-01-000000"
        await ask(path, "POST", f"{at}/restore", {"label": "x", "discard": True})
        assert (await ask(path, "POST", f"{at}/reset", {"discard": True}))[1]["kept"] == ""
        assert (await ask(path, "DELETE", f"{at}/snapshots?label=a%20b"))[0] == 200
        assert service.disks.asked == [
            ("snapshot", "down", ""),
            ("snapshot", "down", "x"),
            ("restore", "down", "x", False),
            ("restore", "down", "x", True),
            ("reset", "down", True),
            ("forget", "down", "a b"),
        ]


@pytest.mark.parametrize(
    ("method", "where", "body", "status", "code"),
    [
        ("POST", "down/snapshots", {"label": 7}, 400, "bad_request"),
        ("POST", "down/snapshots", {"labels": "x"}, 400, "bad_request"),
        ("POST", "down/restore", {"label": "x", "discard": "yes"}, 400, "bad_request"),
        ("POST", "down/reset", [], 400, "bad_request"),
        ("DELETE", "down/snapshots", None, 400, "bad_request"),
        ("DELETE", "down/snapshots?label=a&label=b", None, 400, "bad_request"),
        ("GET", "down/reset", None, 405, "bad_request"),
        ("POST", "down/fork", {"action": "merge"}, 400, "bad_request"),
        ("POST", "down/fork", {"action": "diff", "theirs": True}, 400, "bad_request"),
        ("POST", "down/fork", {"action": "apply", "theirs": 1}, 400, "bad_request"),
        ("GET", "down/fork", None, 405, "bad_request"),
        ("POST", "agent/snapshots", None, 409, "running"),
        ("POST", "moss/reset", None, 404, "no_sandbox"),
        ("POST", "Down/reset", None, 400, "bad_name"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    tmp_path: Path, method: str, where: str, body: object, status: int, code: str
) -> None:
    path = tmp_path / "box.sock"
    async with serving(path) as service:
        got, found = await ask(path, method, f"/v1/sandboxes/{where}", body)
        assert (got, found["error"]["code"]) == (status, code)
        assert service.disks.asked == []


@pytest.mark.parametrize("where", ["data", "fork"])
async def test_an_unknown_action_is_told_what_to_send(tmp_path: Path, where: str) -> None:
    path = tmp_path / "box.sock"
    body = {"action": "steal", "transfer": "0"}
    async with serving(path):
        _, found = await ask(path, "POST", f"/v1/sandboxes/down/{where}", body)
        assert found["error"]["message"].startswith("action: ")
        assert '{"action": ' in found["error"]["fix"]


@pytest.mark.parametrize("how", ["close", "shutdown", "abort"])
@pytest.mark.parametrize("what", ["data", "fork"])
async def test_what_nobody_waits_for_any_more_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
    how: str,
) -> None:
    """Else an export of hours would keep /data for a client that was interrupted at once."""
    path, begun, ended = tmp_path / "box.sock", asyncio.Event(), asyncio.Event()

    async def long(*_: object, **__: object) -> None:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)  # it has something to put right
            ended.set()

    async with serving(path) as service:
        monkeypatch.setattr(service.disks, "transfer", long)
        monkeypatch.setattr(service.disks, "fork_apply", long)
        action = "import" if what == "data" else "apply"
        data = json.dumps({"action": action, "transfer": "0" * 16}).encode()
        _, writer = await asyncio.open_unix_connection(str(path))
        head = f"POST /v1/sandboxes/down/{what} HTTP/1.1\r\nHost: box\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        async with asyncio.timeout(20):
            await begun.wait()
            assert not ended.is_set()
            if how == "shutdown":
                writer.write_eof()
            elif how == "abort":
                writer.transport.abort()
            else:
                writer.close()
            await ended.wait()
        writer.close()
        assert (await ask(path, "GET", "/v1/sandboxes/down/snapshots"))[0] == 200
    assert not caplog.records


async def test_what_the_host_refuses_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "box.sock"

    async def refused(*_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/disks/down")

    async with serving(path) as service:
        monkeypatch.setattr(service.disks, "snapshot", refused)
        status, found = await ask(path, "POST", "/v1/sandboxes/down/snapshots")
    error = found["error"]
    assert status == 500 and error["message"] == "Permission denied"
    assert error["where"] == "/srv/disks/down" and error["fix"] == "ls -ld /srv/disks/down"
