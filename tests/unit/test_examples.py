"""Every Boxfile that people are invited to copy is one that box accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from specs.parse import name_from_filename, parse_boxfile
from tests.lint.tree import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.box.*"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_accepted_as_it_stands(path: Path) -> None:
    parsed = parse_boxfile(
        path.read_bytes(), file=path.name, expected_name=name_from_filename(path.name)
    )
    assert parsed.problems == ()
    assert parsed.box is not None


def test_there_is_an_example() -> None:
    assert "hello.box.yaml" in [path.name for path in EXAMPLES]
