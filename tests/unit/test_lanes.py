"""Two files of tests at a time: nothing is lost, nothing runs twice, quiet ones run alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.lint.tree import ROOT
from tests.vm.harness import until

FILES = 6
SAMPLE = """
import json, os, time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def note(what):
    with open(HERE / "log", "a") as log:
        log.write(json.dumps([Path(__file__).stem, what, os.getpid(), time.monotonic()]) + "\\n")

@pytest.fixture(scope="module")
def home():
    note("made")
    yield
    note("cleared")

def test_one(home):
    note("one"); time.sleep(0.2)

def test_two(home):
    note("two"); time.sleep(0.2)

@pytest.mark.quiet
def test_alone():
    note("alone"); time.sleep(0.1)

def test_skipped(): pytest.skip("no need")
"""
FAILING = (
    SAMPLE
    + """
def test_fails(home): assert [1, 2] == [1, 3]
@pytest.fixture
def mess():
    yield
    raise RuntimeError("the mess")
def test_behind(mess): pass
"""
)
# Lets the lane have both files that come before its end, however long it takes to begin.
UNTIL_TAKEN = """
import time
from pathlib import Path
def test_first():
    log = Path(__file__).parents[1] / "vm" / "log"
    while not log.exists() or "test_v1" not in log.read_text():
        time.sleep(0.1)
"""
DYING = SAMPLE.replace('note("two")', "os.kill(os.getpid(), 9)")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    room = tmp_path / "tests" / "vm"
    room.mkdir(parents=True)
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    for number in range(FILES):
        (room / f"test_v{number}.py").write_text(SAMPLE)
    (tmp_path / "tests" / "unit").mkdir()
    (tmp_path / "tests" / "unit" / "test_first.py").write_text("def test_first(): pass\n")
    return tmp_path


def begun(suite: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=prepend"]
    argv += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(suite), *words, str(suite)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BOX_TEST_")}
    clean |= {"BOX_TEST_RESULTS": str(suite / "results"), **environment}
    return subprocess.Popen(argv, env=clean, cwd=suite, stdout=subprocess.PIPE, text=True)


def run(suite: Path, *words: str, **environment: str) -> str:
    session = begun(suite, *words, **environment)
    try:
        return session.communicate(timeout=100)[0]
    finally:
        session.kill()


def log_of(suite: Path) -> list[tuple[str, str, int, float]]:
    lines = (suite / "tests/vm/log").read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines]


def counted(output: str) -> str:
    return re.sub(r"=+ | in .*", "", output.splitlines()[-1])


def test_every_test_runs_once_in_two_processes_and_quiet_ones_come_last(suite: Path) -> None:
    # On a busy host the session would have run all files before its lane has collected them.
    (suite / "tests/unit/test_first.py").write_text(UNTIL_TAKEN)
    output = run(suite)
    assert counted(output) == f"{3 * FILES + 1} passed, {FILES} skipped"
    log = log_of(suite)
    whole = [(file, what) for file, what, _, _ in log]
    assert len(whole) == len(set(whole)) == 5 * FILES
    shared = [each for each in log if each[1] != "alone"]
    assert len({pid for _, _, pid, _ in shared}) == 2
    for file in {file for file, *_ in shared}:  # each in order, in one process
        of_file = [each for each in shared if each[0] == file]
        assert [what for _, what, _, _ in of_file] == ["made", "one", "two", "cleared"]
        assert len({pid for _, _, pid, _ in of_file}) == 1
    quiet = [each for each in log if each[1] == "alone"]
    assert len({pid for _, _, pid, _ in quiet}) == 1
    assert min(at for *_, at in quiet) > max(at for *_, at in shared)


def test_without_lanes_all_is_one_process(suite: Path) -> None:
    assert counted(run(suite, BOX_TEST_LANES="1")) == f"{3 * FILES + 1} passed, {FILES} skipped"
    assert len({pid for _, _, pid, _ in log_of(suite)}) == 1


def test_failures_of_both_are_told_with_their_words(suite: Path) -> None:
    for number in range(FILES):
        (suite / f"tests/vm/test_v{number}.py").write_text(FAILING)
    output = run(suite)
    said = f"{FILES} failed, {4 * FILES + 1} passed, {FILES} skipped, {FILES} errors"
    assert counted(output) == said
    # Where CI is set pytest's summary says the words once more, on lines that begin otherwise.
    words = [line for line in output.splitlines() if line.startswith("E ")]
    assert sum("At index 1 diff: 2 != 3" in line for line in words) == FILES
    left = (suite / "results/failures.txt").read_text()
    assert left.count("assert [1, 2] == [1, 3]") == 1 and left.count("the same: ") > 5


def test_a_lane_that_dies_is_a_failure_that_names_its_file(suite: Path) -> None:
    """Whichever of the two takes the file, the session does not pass."""
    (suite / "tests/vm/test_v1.py").write_text(DYING)
    (suite / "tests/unit/test_first.py").write_text(UNTIL_TAKEN)
    output = run(suite)
    assert "1 failed" in counted(output)
    assert "the second lane ended in tests/vm/test_v1.py" in output
    # and the rest was still run here
    assert len({file for file, what, *_ in log_of(suite) if what == "cleared"}) == FILES - 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_session_takes_its_lane_along(suite: Path, number: int) -> None:
    for each in range(FILES):
        text = SAMPLE.replace("time.sleep(0.2)", "time.sleep(30)")
        (suite / f"tests/vm/test_v{each}.py").write_text(text)
    session = begun(suite)
    try:

        def both() -> set[int]:
            log = log_of(suite) if (suite / "tests/vm/log").exists() else []
            # Within a test: what is interrupted while it is made is not cleared away.
            pids = {pid for _, what, pid, _ in log if what == "one"}
            return pids if len(pids) == 2 else set()

        pids = until(both, 30, "both are at work")
        session.send_signal(number)
        session.communicate(timeout=60)
        for pid in pids:
            until(partial(ended, pid), 30, "it ends")
        cleared = {file for file, what, *_ in log_of(suite) if what == "cleared"}
        assert len(cleared) == (2 if number == signal.SIGINT else 1)
    finally:
        session.kill()
        session.wait()


def ended(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_what_lanes_and_the_rest_of_the_tests_say_of_one_another() -> None:
    """A name in the list of the longest that is no file any more would do nothing."""
    from tests.lanes import LONGEST

    assert [each for each in LONGEST if not (ROOT / each).exists()] == []
