"""A reading survives being written down, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from specs.reading import Reading

GOOD = Reading("root", "mounts", "1", "2", False, "/proc/1/mountinfo", "live", "replace")


def test_reading_survives_its_plain_form() -> None:
    assert Reading.from_plain(GOOD.to_plain()) == GOOD


@pytest.mark.parametrize(
    "change",
    [
        {"when": "yesterday"},
        {"mend": "pray"},
        {"ok": 1},
        {"got": 2},
        {"extra": "x"},
    ],
)
def test_anything_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a reading"):
        Reading.from_plain({**GOOD.to_plain(), **change})


@pytest.mark.parametrize("data", [None, [], "text", {}, {"layer": "root"}])
def test_garbage_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="not a reading"):
        Reading.from_plain(data)
