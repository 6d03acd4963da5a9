"""Text of others, made safe to show."""

from __future__ import annotations

from specs.text import one_line, visible


def test_a_list_of_mistakes_fits_into_one_line_of_a_log() -> None:
    text = "policy.toml: 2 mistakes\n  policy.toml:1:1: one\n\n  policy.toml:2:1: two\n"
    assert one_line(text) == "policy.toml: 2 mistakes; policy.toml:1:1: one; policy.toml:2:1: two"


def test_nothing_that_a_terminal_acts_on_gets_lost_in_it() -> None:
    assert visible(one_line("a\x0b\x1b[31m\nb\x85c")) == "a\\x0b\\x1b[31m; b\\x85c"
