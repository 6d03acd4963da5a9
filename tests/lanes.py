"""A pytest plugin: runs the files of tests that wait for machines two at a time.

Most of a run is waiting for emulated machines that boot, each on one core. So a session with many
such files begins a second one like itself, its lane: both take the next file from one list as soon
as they have done with theirs, and the lane's reports are shown and counted here as if they were
this session's own. What is marked `quiet` runs at the end, with nothing beside it; all else runs
first, in this session and its usual order. BOX_TEST_LANES=1 turns it off.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from threading import Event, Thread
from typing import Any

import pytest

CHANNEL = "BOX_TEST_LANE"  # the descriptor on which a lane is told what to run; set by a session
SHARED = tuple(f"tests/{room}/" for room in ("vm", "escape"))
WORTHWHILE = 4  # files; a lane collects all tests before it can begin
PATIENCE_SECONDS = 60  # for a lane that is asked to end: it clears away its machines
LOOK_SECONDS = 0.5
LANE = "lane"  # the name of this plugin in a lane
# Whether something that a session began keeps a core busy; then its lane waits.
BUSY = pytest.StashKey[list[Callable[[], bool]]]()
# What takes longest begins first, so that neither waits long for the other in the end.
LONGEST = (
    "tests/escape/test_suite.py",
    "tests/vm/test_network_life.py",
    "tests/vm/test_run.py",
    "tests/vm/test_examples_online.py",
    "tests/escape/test_sabotage.py",
    "tests/vm/test_crash.py",
    "tests/vm/test_builds.py",
    "tests/vm/test_fork_changes.py",
    "tests/vm/test_deletion.py",
    "tests/vm/test_network_walls.py",
    "tests/vm/test_mounts.py",
    "tests/vm/test_user_network.py",
    "tests/vm/test_cases_host.py",
    "tests/vm/test_snapshots.py",
    "tests/vm/test_transfer_crash.py",
)

Items = list[pytest.Item]


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def is_quiet(item: pytest.Item) -> bool:
    return item.get_closest_marker("quiet") is not None


def parted(items: Iterable[pytest.Item]) -> tuple[Items, dict[str, Items], Items]:
    """What runs first, what may run beside other files, by file, and what wants to be alone."""
    first: Items = []
    shared: dict[str, Items] = {}
    quiet: Items = []
    for item in items:
        if is_quiet(item):
            quiet.append(item)
        elif item.nodeid.startswith(SHARED):
            shared.setdefault(file_of(item), []).append(item)
        else:
            first.append(item)
    ranks = {file: rank for rank, file in enumerate(LONGEST)}
    order = sorted(shared, key=lambda file: ranks.get(file, len(ranks)))
    return first, {file: shared[file] for file in order}, quiet


def taken(files: deque[str]) -> str:
    """The next file, or the empty word when all are taken. Two threads may ask."""
    try:
        return files.popleft()
    except IndexError:
        return ""


def run_items(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """As pytest's own loop; what these tests share is cleared away after the last of them."""
    for number, item in enumerate(items, 1):
        following = items[number] if number < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


# -- this session's side


class Lane:
    """The second session. It collects at once, and works as soon as the host is not `busy`."""

    def __init__(self, config: pytest.Config, files: deque[str]) -> None:
        self.reports: deque[dict[str, Any]] = deque()
        self.running = ""  # the file it works on
        self.asked = False  # whether it has ever been ready to work
        self._files = files
        self._busy = config.stash.get(BUSY, [])
        self._opened = Event()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # until the lane is gone
        self._channel, theirs = Pipe()
        arguments = config.invocation_params.args
        self.process = subprocess.Popen(
            # As if somebody had pressed Ctrl-C when this session dies, even by SIGKILL.
            ["setpriv", "--pdeathsig", "INT", sys.executable, "-m", "pytest", *arguments],
            cwd=config.invocation_params.dir,
            env={**os.environ, CHANNEL: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
        )
        theirs.close()
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Answer it until it is gone."""
        with suppress(EOFError, OSError):
            while True:
                said = self._channel.recv()
                if said is None:
                    self.running, self.asked = "", True
                    self._wait_for_room()
                    self.running = taken(self._files)
                    self._channel.send(self.running)
                else:
                    self.reports.append(said)

    def _wait_for_room(self) -> None:
        while not self._opened.wait(LOOK_SECONDS) and any(busy() for busy in self._busy):
            pass

    def finish(self) -> None:
        """Wait until it has run all that it took."""
        self._opened.set()
        self._thread.join()
        self.process.wait()

    def words(self) -> str:
        """The end of what it printed."""
        self._said.seek(0)
        return self._said.read().decode(errors="replace")[-4000:]

    def end(self) -> None:
        """Nothing of it is left: it has ended, or is asked to, or is killed."""
        self._files.clear()
        self._opened.set()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_SECONDS)
            self.process.kill()
            self.process.wait()
        self._thread.join()
        self._channel.close()
        self._said.close()


def shown(config: pytest.Config, reports: deque[dict[str, Any]]) -> None:
    """Whatever the lane has found so far, told to all plugins as if it had been found here."""
    while reports:
        report = config.hook.pytest_report_from_serializable(config=config, data=reports.popleft())
        config.hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
        config.hook.pytest_runtest_logreport(report=report)
        config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


def worthwhile(session: pytest.Session, shared: dict[str, Items]) -> bool:
    """Not for a few files, nor where somebody wants to stop at something, nor for full counts."""
    option = session.config.option
    return (
        os.environ.get("BOX_TEST_LANES") != "1"
        and os.environ.get("BOX_TEST_ALL") != "1"
        and (os.cpu_count() or 1) > 1
        and len(shared) >= WORTHWHILE
        and not (session.testsfailed or option.collectonly or option.maxfail or option.usepdb)
    )


def lost(file: str, words: str) -> pytest.TestReport:
    """What is told when the lane ended before its work."""
    said = f"the second lane ended in {file}, and with it whatever tests of it are not shown:\n"
    return pytest.TestReport(
        f"{file}::the whole of it", (file, 0, "the whole of it"), {}, "failed", said + words, "call"
    )


class Lanes:
    """The loop of a session that has a lane."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        first, shared, quiet = parted(session.items)
        if not worthwhile(session, shared):
            return None
        config, files = session.config, deque(shared)
        lane = Lane(config, files)
        try:
            run_items(session, first)
            while file := taken(files):
                run_items(session, shared[file])
                shown(config, lane.reports)
            lane.finish()
            shown(config, lane.reports)
            if lane.running:
                config.hook.pytest_runtest_logreport(report=lost(lane.running, lane.words()))
            if not lane.asked:  # nothing was lost, but time
                config.get_terminal_writer().line(f"there was no second lane:\n{lane.words()}")
            run_items(session, quiet)
        finally:
            lane.end()
        return True


# -- the lane's side


class Within:
    """The loop of a lane: what it is told to run, each file alone."""

    def __init__(self, descriptor: int) -> None:
        self._channel = Connection(descriptor)
        self._config: pytest.Config | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._config = session.config
        _, shared, _ = parted(session.items)
        while True:
            self._channel.send(None)
            if not (file := self._channel.recv()):
                return True
            run_items(session, shared[file])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert self._config is not None
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._channel.send(data)


def register(config: pytest.Config) -> bool:
    """Give this session its loop; whether it is only another one's lane."""
    descriptor = int(os.environ.pop(CHANNEL, "-1"))  # told once: not for sessions within a test
    if descriptor < 0:
        config.pluginmanager.register(Lanes())
    else:
        config.pluginmanager.register(Within(descriptor), LANE)
    return descriptor >= 0


def is_lane(config: pytest.Config) -> bool:
    return config.pluginmanager.has_plugin(LANE)
