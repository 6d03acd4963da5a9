"""Rendered YAML and text that is safe to show."""

from __future__ import annotations

import pytest

from specs.boxfile import Boxfile
from specs.parse import render_yaml
from specs.text import code_point, visible, visible_lines


@pytest.mark.parametrize(
    "word", ["no", "Yes", "y", "ON", "22:22", "1_000", "1.10", "~", "null", ""]
)
def test_word_that_some_yaml_reader_would_change_is_quoted(word: str) -> None:
    assert f'A: "{word}"\n' in render_yaml(Boxfile(name="fern", env={"A": word}))


def test_only_what_differs_from_the_defaults_is_written() -> None:
    box = Boxfile(name="fern", cpus=4, data={"size_mib": 2048}, labels={"team": "blue"})
    assert render_yaml(box, comments={"cpus": "for builds"}) == (
        "name: fern\n# for builds\ncpus: 4\ndata:\n  size_mib: 2048\nlabels:\n  team: blue\n"
    )


def test_unprintable_characters_are_shown_as_escapes() -> None:
    assert visible("a\x1b[31m\u2028\U000e0001") == "a\\x1b[31m\\u2028\\U000e0001"
    assert visible("caf\u00e9") == "caf\u00e9"
    assert visible("x" * 300, 10) == "x" * 10 + "..."
    assert visible_lines("one\n\ttwo\r\x07") == "one\n\ttwo\\x0d\\x07"
    assert code_point("\u0430") == "U+0430 CYRILLIC SMALL LETTER A"
