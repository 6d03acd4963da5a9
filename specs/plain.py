"""Plain data for files: what TOML and JSON can hold. It must not know what the data means."""

from __future__ import annotations

from typing import Any


def without_none(value: Any) -> Any:
    """`value` without its None, at any depth: TOML has no null. Tuples become lists."""
    if isinstance(value, dict):
        return {str(key): without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [without_none(each) for each in value if each is not None]
    return value
