"""The suite's own report and memory: fields that the document names, and what is made only once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.vm.harness import ROOT

PAGE = ROOT / "docs" / "escape-suite.md"
ABOUT = {"isolation": "strict", "backend": "qemu", "accel": "tcg", "user": "root", "kernel": "6.1"}


def written(escape: Any, *results: str) -> dict[str, Any]:
    """The report of a run whose checks ended like that."""
    report = escape("report")
    made = report.Report(dict(ABOUT))
    for number, result in enumerate(results):
        made.add(report.Finding(f"outside.n{number}", result, "a reading", "what it proves", 1.5))
    told: dict[str, Any] = json.loads(made.as_json())
    return told


def named() -> set[str]:
    """The fields of report and checks that the document puts in backquotes."""
    text = PAGE.read_text().split("## The report", 1)[1]
    return set(re.findall(r"`(\w+)`", text.split("\n## ", 1)[0])) - {"root", "ordinary"}


def test_the_report_has_the_fields_that_the_document_names(escape: Any) -> None:
    told = written(escape, "PASS")
    (one,) = told["checks"]
    assert set(ABOUT) < told.keys()
    assert told.keys() | one.keys() == named()
    assert {key: told[key] for key in ABOUT} == ABOUT
    assert one == {
        "id": "outside.n0",
        "result": "PASS",
        "reading": "a reading",
        "proves": "what it proves",
        "seconds": 1.5,
    }


@pytest.mark.parametrize(
    ("results", "passed"),
    [(("PASS", "WARN"), True), (("PASS", "FAIL", "PASS"), False), (("WARN",), True)],
)
def test_passed_is_false_exactly_when_a_check_failed(
    escape: Any, results: tuple[str, ...], passed: bool
) -> None:
    told = written(escape, *results)
    assert told["passed"] is passed
    assert [one["result"] for one in told["checks"]] == list(results)


@pytest.mark.parametrize(
    ("raised", "result", "reading"),
    [
        (None, "PASS", "what was read"),
        ("Failed", "FAIL", "a hole"),
        ("Unproved", "WARN", "a hole"),
        ("ValueError", "FAIL", "could not be checked: ValueError: a hole"),
    ],
)
def test_what_a_check_raises_is_its_result(
    escape: Any, raised: str | None, result: str, reading: str
) -> None:
    report = escape("report")

    def run(arena: object) -> str:
        if raised is None:
            return "what was read"
        kind: type[Exception] = getattr(report, raised, ValueError)
        raise kind("a hole")

    found = report.perform(report.Check("outside.n", "proves", run), None)
    assert (found.result, found.proves) == (result, "proves")
    assert found.reading.startswith(reading)
    assert found.seconds >= 0


def test_a_guest_s_words_are_shown_on_one_line(escape: Any) -> None:
    plain = escape("report").plain
    assert plain("a\x1b[31m\nb\u202e") == "a\ufffd[31m\ufffdb\ufffd"
    assert len(plain("x" * 5000)) == 600


@pytest.fixture(name="arena")
def _arena(escape: Any, tmp_path: Path) -> Any:
    return escape("arena").Arena(["box"], tmp_path)


def test_what_was_made_is_made_once(arena: Any) -> None:
    first = arena.once("key", object)
    assert arena.once("key", object) is first
    assert arena.once("another", lambda: None) is None


def test_what_could_not_be_made_is_not_tried_again(arena: Any) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise OSError(f"try {len(calls)}")

    for _ in range(3):
        with pytest.raises(OSError, match="try 1"):
            arena.once("key", fail)
    arena.forget("key")
    with pytest.raises(OSError, match="try 2"):
        arena.once("key", fail)


def test_an_interruption_is_not_remembered(arena: Any) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        arena.once("key", interrupted)
    assert arena.once("key", lambda: "made") == "made"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("ann:100:1\nann:5000:10\nbob:1:9\n", [0, 5000, 1, 7, 7, 1, 5001, 5001, 9, 100, 100, 1]),
        ("ann:100:1\n", [0, 100, 1, 7, 7, 1]),
    ],
    ids=["the group of a device stays what it is", "one alone"],
)
def test_every_identity_but_one_is_itself(text: str, rows: list[int], escape: Any) -> None:
    assert escape("spaces").rows("ann", text, 7) == rows
