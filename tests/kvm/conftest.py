"""When the lab runs, and at the end of a session what it found, for whoever reads only the log.

A session that runs the lab and tests that do not mind a busy core starts the lab first, runs those
tests beside it, and then waits for the lab before it goes on with the rest: tests that boot
machines and look at the clock have the host to themselves, as ever.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import is_put_off, missing_lab
from tests.kvm.ahead import Ahead
from tests.lanes import BUSY, is_lane

SUMMARIES: list[str] = []
BEGUN: dict[str, Ahead] = {}  # by the name of the test that will ask for it

HERE = Path(__file__).resolve().parent
LAB_TESTS = HERE / "test_lab.py"
# Tests that judge what comes of things and not how soon, in the order in which they run. Of the
# runs of sabotage some load the host, but only with --all.
PATIENT = [HERE.parent / room for room in ("lint", "setup", "unit")]
if os.environ.get("BOX_TEST_ALL") != "1":
    PATIENT.append(HERE.parent / "escape" / "test_sabotage.py")


def place(item: pytest.Item) -> int:
    """Where in PATIENT it belongs; behind all of them when it does not."""
    places = (n for n, each in enumerate(PATIENT) if each in (item.path, *item.path.parents))
    return next(places, len(PATIENT))


def lab_test(items: list[pytest.Item]) -> pytest.Item | None:
    """The first test that will boot the lab."""
    return next((i for i in items if i.path == LAB_TESTS and not is_put_off(i)), None)


@pytest.hookimpl(trylast=True)  # after what was not selected has been taken away
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = lab_test(items)
    if first is not None:
        items.sort(key=lambda item: (place(item), item is not first))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    first = lab_test(session.items)
    beside = first is not None and place(session.items[0]) < len(PATIENT)
    if session.testsfailed or session.config.option.collectonly or not beside:
        return
    if is_lane(session.config) or missing_lab():
        return
    from tests.kvm.job import Job

    assert isinstance(first, pytest.Function)
    job = first.callspec.params["job"]
    assert isinstance(job, Job)
    command = [sys.executable, "-m", "tests.kvm.ahead", *job.words()]
    begun = BEGUN[first.nodeid] = Ahead(command)
    session.config.stash.setdefault(BUSY, []).append(lambda: not begun.ended())


def pytest_sessionfinish() -> None:
    for begun in BEGUN.values():
        begun.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not SUMMARIES:
        return
    terminalreporter.section("in the lab with real KVM")
    for line in SUMMARIES:
        terminalreporter.write_line(line)
