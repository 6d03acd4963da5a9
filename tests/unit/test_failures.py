"""What is left of a failed run for whoever sees only the end of its log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.failures import (
    LINE_MAX,
    LINES,
    NAMES,
    TOTAL_MAX,
    Failure,
    blocks,
    brief,
    words_of,
)
from tests.lint.tree import ROOT
from tests.tracebacks import no_traceback, tracebacks

SAMPLE = """
import pytest

@pytest.fixture
def leaves_a_mess():
    yield
    raise RuntimeError("the mess")

def test_passes(): pass

def test_clear():
    left, right = "what was found", "what was wanted"
    assert left == right, "a hint"

@pytest.mark.parametrize("number", range(9))
def test_same(number): raise RuntimeError("the same words")

def test_behind(leaves_a_mess): pass

def test_of_many(record_property):
    for name in ("outside.uid", "outside.root"):
        record_property("failed part", f"{name}: failed\\nread of {name}")
    pytest.fail("two of many", pytrace=False)

def test_is_no_failure(): pytest.skip("no need")
"""
TEXT = """\
12:00:01 box: oak: starting
12:00:02 box: a task ended
Traceback (most recent call last):
  File "a.py", line 1, in one
    two()
    ~~~^^
KeyError: 'oak'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 7, in three
    raise ValueError
ValueError: no {what}
12:00:03 box: oak: starting
"""


def run(folder: Path) -> str | None:
    """The file after a session on the sample in `folder`."""
    (folder / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=prepend"]
    argv += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), str(folder)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BOX_TEST_")}
    subprocess.run(
        argv,
        env=clean | {"BOX_TEST_RESULTS": str(folder / "results")},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        timeout=100,
    )
    file = folder / "results" / "failures.txt"
    return file.read_text() if file.exists() else None


def test_each_failure_has_a_block_with_its_own_last_words(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    text = run(tmp_path)
    assert text is not None
    clear, same, behind, one, other = text.split("-- test_sample.py::")[1:]
    assert clear.startswith("test_clear\n")
    assert "AssertionError: a hint" in clear and "what was wanted" in clear
    assert "def test_clear" not in clear
    assert same.startswith("test_same[0]\n   the same: test_sample.py::test_same[1]\n")
    assert same.count("the same words") == 1 and "   and 3 more\n" in same
    assert behind.startswith("test_behind (teardown)\n") and "the mess" in behind
    assert one.startswith("test_of_many\n   outside.uid: failed\n   read of outside.uid\n")
    assert other.startswith("test_of_many\n   outside.root: failed\n")


def test_a_run_without_failures_leaves_no_file_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("def test_fails(): assert False\n")
    assert run(tmp_path)
    (tmp_path / "test_sample.py").write_text("def test_passes(): pass\n")
    assert run(tmp_path) is None


def test_a_file_that_cannot_be_read_is_a_failure_too(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("import nowhere_at_all\n")
    text = run(tmp_path)
    assert text is not None
    assert "test_sample.py (collecting)" in text and "nowhere_at_all" in text


def test_everything_together_stays_short() -> None:
    many = [Failure([f"{n} {'x' * 90}"] * 100, [f"test_{n}"]) for n in range(200)]
    shown = list(blocks(many))
    assert len(shown) == 200  # each is named
    assert len("\n".join(shown)) < TOTAL_MAX + 200 * 60
    assert len(blocks_of(many[0])) > LINES
    assert max(map(len, brief(["y" * 9000]))) < LINE_MAX + 20
    assert Failure(["z"], [f"t{n}" for n in range(50)]).block(9).count("\n") == NAMES + 1


def blocks_of(failure: Failure) -> list[str]:
    return next(iter(blocks([failure]))).splitlines()


def test_the_lines_of_the_error_are_kept_or_without_any_all_lines() -> None:
    text = "    def test():\n>       assert x\nE       assert 1 == 2\nE         more\n"
    assert words_of(text) == ["assert 1 == 2", "  more"]
    assert words_of("one\ntwo\n") == ["one", "two"]
    lines = [str(n) for n in range(40)]
    assert brief(lines, LINES)[0] == "0" and brief(lines, LINES)[-1] == "39"
    assert len(brief(lines, LINES)) == LINES
    assert brief(lines[:LINES], LINES) == lines[:LINES]


def test_a_traceback_is_shown_whole_and_once() -> None:
    (found,) = tracebacks(TEXT * 3)
    assert found.startswith("12:00:02 box: a task ended\nTraceback")
    assert "KeyError: 'oak'" in found
    assert found.endswith("ValueError: no {what}")
    with pytest.raises(AssertionError, match="1 different tracebacks in the log") as raised:
        no_traceback(TEXT.encode() * 2, "in the log")
    assert found in str(raised.value)


def test_different_tracebacks_are_all_counted() -> None:
    other = TEXT.replace("oak", "elm")
    assert len(tracebacks(TEXT + other)) == 2


def test_even_the_word_alone_counts() -> None:
    assert tracebacks("box: Traceback is no word for users") == [
        "box: Traceback is no word for users"
    ]
    no_traceback("12:00:01 box: oak: starting\n")
