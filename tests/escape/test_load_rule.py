"""When the load that a guest makes is too much for its host, by what the windows have seen.

The windows are given here; that they see a real guest is for the suite's own runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CALM, SLOW, SILENT = (2.0, 0.5), (9.5, 0.5), (2.0, 2.5)


@pytest.fixture(name="judged")
def _judged(escape: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Judges windows of (milliseconds to spawn, seconds of `box get`) against 3 ms at rest."""
    load = escape("load")
    arena = escape("arena").Arena(["box"], tmp_path)

    def seen(spawn: float, get: float, cpus: float) -> Any:
        return load.Seen(spawns=[spawn / 1000] * 40, gets=[get], cpus=cpus)

    def judge(*windows: tuple[float, float], cpus: float = 9.0) -> tuple[str, dict[str, Any]]:
        given: Iterator[Any] = iter([seen(*each, cpus) for each in windows])
        monkeypatch.setattr(load, "_window", lambda *_: next(given))
        quiet = seen(3.0, 0.1, 0.0)
        said = load._bearable(arena, quiet, load._watch(arena, quiet), "load.x")
        return said, arena.measured["load.x"]

    return judge


def test_three_calm_windows_are_enough(judged: Any) -> None:
    said, measured = judged(CALM, SLOW, CALM, SLOW, CALM)
    assert "2.0 ms" in said and "5 windows" in said
    assert measured["spawn_ms"] == [2.0, 9.5, 2.0, 9.5, 2.0]
    assert (measured["quiet_ms"], measured["get_seconds"][0], measured["guest_cpus"][0]) == (
        3.0,
        0.5,
        9.0,
    )


@pytest.mark.parametrize(
    ("windows", "reading"),
    [
        ((CALM, CALM, *[SLOW] * 6), "more than 3 times, in 6 of 8 windows"),
        ((*[SLOW] * 6,), "more than 3 times, in 6 of 6 windows"),
        ((CALM, *[SLOW] * 3, *[SILENT] * 3), "more than 2 s, in 6 of 7 windows"),
    ],
)
def test_fewer_are_a_hole_and_no_more_windows_are_looked_at(
    escape: Any, judged: Any, windows: tuple[tuple[float, float], ...], reading: str
) -> None:
    with pytest.raises(escape("report").Failed, match=reading):
        judged(*windows)


def test_a_guest_that_was_not_busy_proves_nothing(escape: Any, judged: Any) -> None:
    with pytest.raises(escape("report").Unproved, match="no load was made"):
        judged(CALM, CALM, CALM, cpus=0.01)
