"""Shows at the end of a run what the lab found, for whoever reads only the log."""

from __future__ import annotations

import pytest

SUMMARIES: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not SUMMARIES:
        return
    terminalreporter.section("in the lab with real KVM")
    for line in SUMMARIES:
        terminalreporter.write_line(line)
