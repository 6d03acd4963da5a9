"""The API as a well-behaved client uses it, over a real socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.hostservice import HostService


class Unix(http.client.HTTPConnection):
    """The standard library's client, a second opinion on our HTTP."""

    def __init__(self, path: Path) -> None:
        super().__init__("box", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


async def ask(
    path: Path, method: str, target: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    def talk() -> tuple[int, Any]:
        connection = Unix(path)
        try:
            connection.request(
                method, target, body, {k.replace("_", "-"): v for k, v in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    return await asyncio.to_thread(talk)


async def test_version_and_list_and_one(api: tuple[HostService, Path]) -> None:
    _, path = api
    status, body = await ask(path, "GET", "/v1/version")
    assert body["pid"] == os.getpid()
    assert (status, body["api"], body["instance"]) == (200, "v1", "0123456789ab")
    status, body = await ask(path, "GET", "/v1/sandboxes")
    assert [one["name"] for one in body["sandboxes"]] == ["agent", "down"]
    status, body = await ask(path, "GET", "/v1/sandboxes/agent")
    assert (status, body["generation"], body["backend"]) == (200, 3, "qemu")


async def test_put_reaches_the_folder_and_wakes_the_loop(api: tuple[HostService, Path]) -> None:
    service, path = api
    text = b"name: fern\ncpus: 1\n"
    assert await ask(path, "PUT", "/v1/sandboxes/fern", text) == (
        201,
        {"name": "fern", "result": "created"},
    )
    assert service.applied == {"fern": text}
    assert service.poked == ["fern"]


async def test_put_of_an_invalid_boxfile_names_every_mistake(api: tuple[HostService, Path]) -> None:
    service, path = api
    status, body = await ask(path, "PUT", "/v1/sandboxes/fern", b"cpus: 99\nrma_mib: 3\n")
    assert (status, body["error"]["code"]) == (400, "invalid")
    assert len(body["error"]["problems"]) == 2
    assert service.applied == {}


async def test_if_match_reaches_the_folder_without_quotes(api: tuple[HostService, Path]) -> None:
    _, path = api
    status, body = await ask(path, "PUT", "/v1/sandboxes/fern", b"name: fern\n", If_Match='"stale"')
    assert (status, body["error"]["code"]) == (409, "conflict")


async def test_delete_keeps_data_unless_asked(api: tuple[HostService, Path]) -> None:
    service, path = api
    assert (await ask(path, "DELETE", "/v1/sandboxes/agent"))[0] == 200
    assert (await ask(path, "DELETE", "/v1/sandboxes/agent?data=erase"))[0] == 200
    assert service.deleted == [("agent", False), ("agent", True)]
    assert (await ask(path, "DELETE", "/v1/sandboxes/agent?data=yes"))[0] == 400
    assert (await ask(path, "DELETE", "/v1/sandboxes/down?data=erase"))[0] == 403
    assert len(service.deleted) == 2


async def test_events_verify_and_prune(api: tuple[HostService, Path]) -> None:
    service, path = api
    _, body = await ask(path, "GET", "/v1/sandboxes/agent/events")
    assert body["events"][0]["kind"] == "Started"
    _, body = await ask(path, "POST", "/v1/sandboxes/agent/verify")
    assert body["readings"][0]["source"] == "/proc/1/status"
    _, body = await ask(path, "GET", "/v1/prune")
    assert "agent" in body["held"]
    assert not service.confirmed
    await ask(path, "POST", "/v1/prune")
    assert service.confirmed


async def test_data_is_moved_by_an_action_and_a_transfer(api: tuple[HostService, Path]) -> None:
    service, path = api
    where = "/v1/sandboxes/down/data"
    good = b'{"action": "export", "transfer": "0123456789abcdef"}'
    status, body = await ask(path, "POST", where, good)
    assert (status, body["result"]) == (200, "exported")
    asked = [("transfer", "down", "export", "0123456789abcdef")]
    assert service.disks.asked == asked
    status, body = await ask(path, "POST", "/v1/sandboxes/agent/data", good)
    assert (status, body["error"]["code"]) == (409, "running")
    for wrong in (
        b"", b"[]", b"{}", b'{"transfer": "x"}', b'{"action": "erase", "transfer": "x"}',
        b'{"action": 1, "transfer": "x"}', b'{"action": "import", "transfer": 7}',
        b'{"action": "import", "transfer": "x", "more": 1}',
    ):  # fmt: skip
        status, body = await ask(path, "POST", where, wrong)
        assert (status, body["error"]["code"]) == (400, "bad_request"), wrong
    assert (await ask(path, "GET", where))[0] == 405
    assert (await ask(path, "POST", "/v1/sandboxes/nobody/data", good))[0] == 404
    assert service.disks.asked == asked


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/v1/sandboxes/nobody", 404, "no_sandbox"),
        ("GET", "/v1/sandboxes/../version", 404, "bad_request"),
        ("GET", "/v1/sandboxes/..", 400, "bad_name"),
        ("GET", "/v1/sandboxes/%2e%2e", 400, "bad_name"),
        ("PUT", "/v1/sandboxes/A", 400, "bad_name"),
        ("PUT", "/v1/sandboxes/a.b", 400, "bad_name"),
        ("DELETE", "/v1/sandboxes/" + "a" * 64, 400, "bad_name"),
        ("GET", "/", 404, "bad_request"),
        ("GET", "/v2/version", 404, "bad_request"),
        ("GET", "http://elsewhere/v1/version", 404, "bad_request"),
        ("PATCH", "/v1/version", 405, "bad_request"),
        ("POST", "/v1/sandboxes/agent", 405, "bad_request"),
        ("GET", "/v1/sandboxes/agent/exec", 405, "bad_request"),
        ("POST", "/v1/sandboxes/agent/exec", 400, "bad_request"),
    ],
)
async def test_refusals_have_a_status_and_a_stable_code(
    api: tuple[HostService, Path], method: str, target: str, status: int, code: str
) -> None:
    _, path = api
    answer, body = await ask(path, method, target, b"name: x\n" if method == "PUT" else None)
    assert (answer, body["error"]["code"]) == (status, code)
    assert body["error"]["message"]


async def test_one_connection_carries_several_requests(api: tuple[HostService, Path]) -> None:
    _, path = api

    def talk() -> list[int]:
        connection = Unix(path)
        found = []
        for target in ("/v1/version", "/v1/sandboxes/nobody", "/v1/sandboxes"):
            connection.request("GET", target)
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
        connection.close()
        return found

    assert await asyncio.to_thread(talk) == [200, 404, 200]


async def test_a_client_that_waits_for_100_continue_is_answered(
    api: tuple[HostService, Path],
) -> None:
    service, path = api
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(
        b"PUT /v1/sandboxes/fern HTTP/1.1\r\nHost: b\r\nContent-Length: 11\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    writer.write(b"name: fern\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201")
    writer.close()
    assert service.applied["fern"] == b"name: fern\n"
