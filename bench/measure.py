"""What a measurement is: samples, a unit, and perhaps a target that its median must meet.

Pure arithmetic and text; it must not start, time or read anything.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Fewer samples than this say nothing on a machine that others use too.
FEWEST = 7


@dataclass(frozen=True)
class Target:
    """The median must be at most `most`; `aim` is where it should get to, and decides nothing."""

    most: float
    aim: float | None = None


@dataclass(frozen=True)
class Row:
    """One line of the table. `unit` is "x" for a ratio; a row without a target is information."""

    benchmark: str
    what: str
    unit: str
    samples: tuple[float, ...]
    target: Target | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def met(self) -> bool:
        """Whether the target is met, as the samples show it and with no allowance for noise."""
        return self.target is None or self.median <= self.target.most

    def to_plain(self) -> dict[str, Any]:
        """The row as JSON values."""
        return {
            "benchmark": self.benchmark,
            "what": self.what,
            "unit": self.unit,
            "min": min(self.samples),
            "median": self.median,
            "max": max(self.samples),
            "samples": list(self.samples),
            "target": self.target.most if self.target else None,
            "aim": self.target.aim if self.target else None,
            "met": self.met,
        }


def ratios(measured: Sequence[float], yardstick: Sequence[float]) -> tuple[float, ...]:
    """One ratio for each interleaved pair: load that comes and goes falls on both halves."""
    return tuple(a / b for a, b in zip(measured, yardstick, strict=True))


HEADINGS = ("benchmark", "what", "n", "min", "median", "max", "unit", "target", "")


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text, one line each, with headings."""
    lines = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    texts = ("  ".join(_aligned(line, widths)) for line in lines)
    return "\n".join(text.rstrip() for text in texts)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    words = (0, 1, 6, 8)
    return [
        cell.ljust(width) if i in words else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]


def _cells(row: Row) -> tuple[str, ...]:
    target = f"<= {_number(row.target.most)}" if row.target else ""
    verdict = "" if row.target is None else "ok" if row.met else "MISSED"
    if row.met and row.target and row.target.aim is not None and row.median > row.target.aim:
        verdict += f" (aim {_number(row.target.aim)})"
    return (
        row.benchmark,
        row.what,
        str(len(row.samples)),
        _number(min(row.samples)),
        _number(row.median),
        _number(max(row.samples)),
        row.unit,
        target,
        verdict,
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
