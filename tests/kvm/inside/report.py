"""A pytest plugin: tells the host side of the lab about each test, one JSON line each.

The lines go to a serial port of their own, so that no kernel message can end up in the middle of
one. It judges nothing.
"""

from __future__ import annotations

import json
import os

import pytest

TEXT_MAX = 20_000  # characters of one failure that are handed out; the console has all of it


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for a test's own result, or for a set-up or clean-up that went wrong."""
    if report.when != "call" and report.passed:
        return
    line = {
        "test": report.nodeid,
        "outcome": report.outcome,
        "seconds": round(report.duration, 1),
        "text": "" if report.passed else str(report.longrepr)[-TEXT_MAX:],
    }
    with open(os.environ["LAB_RESULTS"], "w", encoding="utf-8") as port:
        port.write(json.dumps(line) + "\n")
