"""A pytest plugin: says at the end of a run which files of tests took its time, for whoever has to
keep the whole run short. It must not judge how long anything takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest

SHOWN = 12  # files; the rest is one line


class FileTimes:
    """Adds up seconds of wall clock per file: of its tests, and of setting up and clearing away
    what they share.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._seconds) < 2:
            return
        terminalreporter.section("where the time went")
        for line in table(self._seconds):
            terminalreporter.write_line(line)


def table(seconds: Mapping[str, float]) -> list[str]:
    """A line per file, the longest first, then what all the others took together."""
    ordered = sorted(seconds.items(), key=lambda pair: -pair[1])
    lines = [f"{took:7.1f} s  {file}" for file, took in ordered[:SHOWN]]
    if rest := [took for _, took in ordered[SHOWN:]]:
        lines.append(f"{sum(rest):7.1f} s  {len(rest)} more files")
    return lines
