"""Calls to the running controller that expect one JSON answer.

Everything that reading files can answer does not come here, so that it works without a controller.
This module must not print.
"""

from __future__ import annotations

import http.client
import json
from typing import Any

from controller.cli.place import not_running
from controller.socketfile import connect
from reconcilers.layout import Layout
from specs.errors import (
    BadName,
    BoxError,
    Conflict,
    NoSandbox,
    NotUp,
    StillRunning,
    UsageError,
)

ANSWER_SECONDS = 60.0
# For what a machine does to a disk, which the controller bounds by itself.
WORK_SECONDS = 7 * 24 * 3600.0
REPLY_MAX = 64 * 1024 * 1024
ERRORS: dict[str, type[BoxError]] = {
    kind.code: kind for kind in (UsageError, BadName, NoSandbox, NotUp, Conflict, StillRunning)
}


class _Connection(http.client.HTTPConnection):
    """HTTP over the controller's socket; the host name of http.client has no meaning here."""

    def __init__(self, layout: Layout, seconds: float) -> None:
        super().__init__("box", timeout=seconds)
        self._layout = layout
        self._seconds = seconds

    def connect(self) -> None:
        self.sock = connect(self._layout.socket, timeout=self._seconds)


def call(
    layout: Layout,
    method: str,
    path: str,
    body: bytes | None = None,
    seconds: float = ANSWER_SECONDS,
) -> dict[str, Any]:
    """The decoded answer, waited for so long. Raises the error the controller answered with, or
    NotUp.
    """
    connection = _Connection(layout, seconds)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        data = answer.read(REPLY_MAX)
    except (FileNotFoundError, ConnectionRefusedError):
        raise not_running(layout) from None
    except (OSError, http.client.HTTPException) as problem:
        raise NotUp(f"the controller does not answer: {problem}", fix="see its log") from None
    finally:
        connection.close()
    try:
        decoded = json.loads(data)
        if answer.status < 400:
            return dict(decoded)
        error = decoded["error"]
        message, fix = str(error["message"]), str(error.get("fix", ""))
        where = str(error.get("where", ""))
        kind = ERRORS.get(str(error["code"]), BoxError)
    except (ValueError, KeyError, TypeError):
        raise NotUp(f"the controller's answer makes no sense (status {answer.status})") from None
    raise kind(message, fix=fix, where=where)
