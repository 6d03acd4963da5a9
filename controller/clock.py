"""The wall clock as text, for records and reports. Decisions use the monotonic clock instead."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp() -> str:
    """Now, ISO-8601 UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
