"""Short forms for tests of the parser."""

from __future__ import annotations

from specs.boxfile import Boxfile
from specs.errors import Problem
from specs.parse import parse_boxfile


def problems(
    text: str | bytes, *, file: str = "fern.yaml", name: str | None = "fern"
) -> list[Problem]:
    """The mistakes of an invalid Boxfile."""
    data = text.encode() if isinstance(text, str) else text
    parsed = parse_boxfile(data, file=file, expected_name=name)
    assert parsed.box is None, f"accepted as {parsed.box!r}"
    assert parsed.problems
    return list(parsed.problems)


def only_problem(
    text: str | bytes, *, file: str = "fern.yaml", name: str | None = "fern"
) -> Problem:
    """The one mistake of a Boxfile that has one."""
    found = problems(text, file=file, name=name)
    assert len(found) == 1, [str(problem) for problem in found]
    return found[0]


def accepted(text: str | bytes, *, file: str = "fern.yaml", name: str | None = "fern") -> Boxfile:
    """The value of a valid Boxfile."""
    data = text.encode() if isinstance(text, str) else text
    parsed = parse_boxfile(data, file=file, expected_name=name)
    assert parsed.problems == (), [str(problem) for problem in parsed.problems]
    assert parsed.box is not None
    return parsed.box


def place(problem: Problem) -> tuple[int, int]:
    return problem.line, problem.column
