"""A pytest plugin: leaves behind, in few lines, what failed and why, for whoever sees only the end
of a log. `.ci/run` shows it after the count. It must not change any result.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

NAME = "failures.txt"  # in the folder of results
PART = "failed part"  # property of a test that makes many checks: what one that failed says
WHOLE = 3  # different failures that are shown with up to WHOLE_LINES, the others with LINES
WHOLE_LINES = 60
LINES = 15
FEW = 3
LINE_MAX = 400  # characters
TOTAL_MAX = 12_000  # characters of everything; what is over is named only
NAMES = 6  # of tests that failed with the same words


def words_of(text: str) -> list[str]:
    """What a failure's text says in the end: pytest's lines of the error, or if none all lines."""
    lines = text.rstrip().splitlines()
    errors = [line[1:] for line in lines if line[:2] in ("E", "E ")]
    return textwrap.dedent("\n".join(errors)).splitlines() or lines


def brief(words: list[str], most: int = LINES) -> list[str]:
    """At most `most` lines: the first, which say what was expected, and the last."""
    if len(words) > most:
        head = (most - 1) // 3
        left = len(words) - (most - 1)
        words = [*words[:head], f"[{left} lines left out]", *words[head + left :]]
    return [_shortened(line) for line in words]


def _shortened(line: str) -> str:
    half = LINE_MAX // 2
    return line if len(line) <= LINE_MAX else f"{line[:half]} [...] {line[-half:]}"


@dataclass
class Failure:
    """One thing that went wrong, and every test that it went wrong in."""

    words: list[str]
    tests: list[str] = field(default_factory=list)

    def block(self, most: int) -> str:
        more = self.tests[1:NAMES]
        rest = len(self.tests) - 1 - len(more)
        same = [f"   the same: {test}" for test in more] + ([f"   and {rest} more"] if rest else [])
        lines = [f"-- {self.tests[0]}", *same, *(f"   {line}" for line in brief(self.words, most))]
        return "\n".join(line.rstrip() for line in lines)


def blocks(failures: Iterable[Failure]) -> Iterator[str]:
    """A block for each, in the order in which they happened; the first ones are the longest."""
    room = TOTAL_MAX
    for number, failure in enumerate(failures):
        most = (WHOLE_LINES, LINES, FEW) if number < WHOLE else (LINES, FEW)
        fitting = (block for block in map(failure.block, most) if len(block) <= room)
        name = f"-- {failure.tests[0]} and {len(failure.tests) - 1} more, see the log above"
        block = next(fitting, name)
        room -= len(block)
        yield block


class Failures:
    """Writes the file anew at each failure, so that a session cut short has left it as well."""

    def __init__(self, results: Path) -> None:
        self._file = results / NAME
        self._found: dict[str, Failure] = {}

    def pytest_sessionstart(self) -> None:
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            parts = [str(text) for name, text in report.user_properties if name == PART]
            where = "" if report.when == "call" else f" ({report.when})"
            for text in parts or [report.longreprtext]:
                self._add(report.nodeid + where, text)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(f"{report.nodeid} (collecting)", report.longreprtext)

    def _add(self, test: str, text: str) -> None:
        words = words_of(text)
        self._found.setdefault("\n".join(words), Failure(words)).tests.append(test)
        # what tells of a failure must not become one
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text("\n".join(blocks(self._found.values())) + "\n", errors="replace")
