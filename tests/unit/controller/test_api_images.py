"""The API's routes to images: what they pass on, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconcilers.images.progress import Progress
from tests.unit.cli.hostservice import serving
from tests.unit.controller.test_api_disks import ask


async def test_each_request_reaches_its_verb(tmp_path: Path) -> None:
    path, at = tmp_path / "box.sock", "/v1/sandboxes/down"
    async with serving(path) as service:
        assert (await ask(path, "GET", f"{at}/build"))[1] == {"name": "down", "state": "none"}
        assert await ask(path, "POST", f"{at}/build", {"pull": True}) == (
            202,
            {"name": "down", "run": 1},
        )
        progress = service.images.found = Progress(run=7)
        progress.stage("fetching")
        progress.bytes(1, 2)
        for line in (b"one", b"\xff"):
            progress.line(line)
        status, seen = await ask(path, "GET", f"{at}/build?from=1")
        assert status == 200
        assert seen == {
            "name": "down", "run": 7, "state": "running", "stage": "fetching", "done": 1,
            "total": 2, "first": 1, "lines": ["\ufffd"], "failure": "", "fix": "", "digest": "",
        }  # fmt: skip
        assert (await ask(path, "GET", f"{at}/build?from=99"))[1]["lines"] == []
        assert len((await ask(path, "GET", "/v1/images"))[1]["images"]) == 2
        assert len((await ask(path, "POST", "/v1/images", {"dry_run": True}))[1]["removed"]) == 1
        await ask(path, "POST", "/v1/images")
        assert service.images.asked == [
            ("build", "down", True),
            ("prune", True),
            ("prune", False),
        ]


@pytest.mark.parametrize(
    ("method", "where", "body", "status", "code"),
    [
        ("POST", "sandboxes/down/build", {"pull": 1}, 400, "bad_request"),
        ("POST", "sandboxes/down/build", {"push": True}, 400, "bad_request"),
        ("GET", "sandboxes/down/build?from=-1", None, 400, "bad_request"),
        ("GET", f"sandboxes/down/build?from={'9' * 5000}", None, 400, "bad_request"),
        ("GET", "sandboxes/down/build?from=1&from=2", None, 400, "bad_request"),
        ("GET", "sandboxes/down/build?to=1", None, 400, "bad_request"),
        ("POST", "sandboxes/moss/build", None, 404, "no_sandbox"),
        ("POST", "images", {"dry_run": "yes"}, 400, "bad_request"),
        ("DELETE", "images", None, 405, "bad_request"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    tmp_path: Path, method: str, where: str, body: object, status: int, code: str
) -> None:
    path = tmp_path / "box.sock"
    async with serving(path) as service:
        got, answer = await ask(path, method, f"/v1/{where}", body)
        assert (got, answer["error"]["code"]) == (status, code)
        assert service.images.asked == []
