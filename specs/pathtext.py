"""Paths that are bytes as fields of JSON, and back: pure.

A path of a guest may be no UTF-8. Then it is in base64, in a field of another name, so that nobody
takes one for the other.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping


def path_field(path: bytes) -> dict[str, str]:
    """`{"path": TEXT}`, or `{"path_b64": BASE64}` for what is no UTF-8."""
    try:
        return {"path": path.decode()}
    except UnicodeDecodeError:
        return {"path_b64": base64.b64encode(path).decode()}


def path_of(fields: Mapping[str, object]) -> bytes:
    """What `path_field` wrote. Raises ValueError."""
    text, coded = fields.get("path"), fields.get("path_b64")
    if isinstance(text, str):
        return text.encode()
    if isinstance(coded, str):
        return base64.b64decode(coded, validate=True)
    raise ValueError("a path is expected")
