"""What a test asks when it asks whether anything drifted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def of_host(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what a busy host alone may bring about: a guest that did not answer in time."""
    return [each for each in found if each["field"] != "guest"]
