"""Bodies of API requests turned into values, with every field checked.

Nothing from a client is believed: types, sizes and characters are checked here and a mistake names
its field. This module must not call the Service.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from controller.httpconn import Request
from specs.document import SIZE_MAX
from specs.errors import UsageError

if TYPE_CHECKING:
    from agent.messages import ExecRequest

EXEC_FIELDS = frozenset({"argv", "argv_b64", "env", "cwd", "user", "stdin", "timeout_ms"})


def text_body(request: Request) -> bytes:
    """A Boxfile as sent. Raises UsageError."""
    if not request.body:
        raise UsageError("the body is empty", fix="send the Boxfile as the body")
    if len(request.body) > SIZE_MAX:
        raise UsageError(f"the Boxfile is over {SIZE_MAX} bytes")
    return request.body


def exec_request(request: Request) -> ExecRequest:
    """What to run. Raises UsageError.

    `timeout_ms` 0, the default, leaves the time limit to the Boxfile.

    Strings may hold bytes that are not UTF-8 as lone surrogates, the way Python's `os.fsdecode`
    writes them; `argv_b64` says the same in base64.
    """
    from agent.messages import ExecRequest

    body = object_body(request.body)
    unknown = sorted(set(body) - EXEC_FIELDS)
    if unknown:
        raise UsageError(
            f"unknown field {unknown[0]!r}", fix="known: " + ", ".join(sorted(EXEC_FIELDS))
        )
    chosen: dict[str, Any] = {}
    for name in ("cwd", "user"):
        if name in body:
            chosen[name] = _text(body[name], name)
            _bytes(chosen[name], name)
    stdin = body.get("stdin", False)
    if not isinstance(stdin, bool):
        raise UsageError("stdin: true or false is expected")
    timeout = body.get("timeout_ms", 0)
    if not isinstance(timeout, int) or isinstance(timeout, bool) or not 0 <= timeout < 2**31:
        raise UsageError("timeout_ms: a number from 0 to 2147483647 is expected")
    return ExecRequest(argv=_argv(body), env=_env(body), stdin=stdin, timeout_ms=timeout, **chosen)


def object_body(data: bytes) -> dict[str, Any]:
    """The JSON object that a body is. Raises UsageError."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise UsageError("the body is not a JSON object")
    return body


def fields(request: Request, *known: str) -> dict[str, object]:
    """The body's fields, none for an empty body. Raises UsageError for one that is not `known`."""
    body = object_body(request.body) if request.body else {}
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise UsageError(f"unknown field {unknown[0]!r}", fix="known: " + ", ".join(known))
    return body


def text(body: Mapping[str, object], field: str) -> str:
    """A string, empty where it is left out. Raises UsageError."""
    value = body.get(field, "")
    if not isinstance(value, str):
        raise UsageError(f"{field}: a string is expected")
    return value


def flag(body: Mapping[str, object], field: str) -> bool:
    """True or false, false where it is left out. Raises UsageError."""
    value = body.get(field, False)
    if not isinstance(value, bool):
        raise UsageError(f"{field}: true or false is expected")
    return value


def _argv(body: dict[str, Any]) -> tuple[bytes, ...]:
    if ("argv" in body) == ("argv_b64" in body):
        raise UsageError("argv: exactly one of argv and argv_b64 is expected")
    field = "argv" if "argv" in body else "argv_b64"
    values = body[field]
    if not isinstance(values, list) or not values:
        raise UsageError(f"{field}: a list with at least the program is expected")
    if field == "argv":
        argv = tuple(_bytes(_text(value, field), field) for value in values)
    else:
        argv = tuple(_base64(value) for value in values)
    if not argv[0]:
        raise UsageError(f"{field}: the program's name is empty")
    return argv


def _env(body: dict[str, Any]) -> dict[bytes, bytes]:
    values = body.get("env", {})
    if not isinstance(values, dict):
        raise UsageError("env: an object of strings is expected")
    env = {_bytes(key, "env"): _bytes(_text(value, "env"), "env") for key, value in values.items()}
    if any(not key or b"=" in key for key in env):
        raise UsageError("env: a variable's name is not empty and holds no '='")
    return env


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{field}: a string is expected, not {type(value).__name__}")
    return value


def _bytes(value: str, field: str) -> bytes:
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{field}: not text and not escaped bytes") from None
    return _without_nul(data, field)


def _base64(value: object) -> bytes:
    try:
        return _without_nul(
            binascii.a2b_base64(_text(value, "argv_b64"), strict_mode=True), "argv_b64"
        )
    except ValueError:
        raise UsageError("argv_b64: not base64") from None


def _without_nul(data: bytes, field: str) -> bytes:
    if b"\0" in data:
        raise UsageError(f"{field}: a zero byte cannot be passed to a program")
    return data
