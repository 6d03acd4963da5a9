"""Every line of a document or an example that begins with `box` is one that box understands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from controller.cli.parser import build
from tests.lint.tree import ROOT, project_files

LINE = re.compile(r"^(?: {4}(?: *\$ )?|# {2,})(box [a-z].*)$")
SHELL = "|&;<>"


def commands(path: Path) -> Iterator[list[str]]:
    """Their arguments, without comments, redirections and what comes after a pipe."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if shown := LINE.match(line):
            words = shlex.shlex(shown[1], posix=True, punctuation_chars=SHELL)
            words.commenters = "#"
            words.whitespace_split = True
            rest = list(words)
            while "box" in rest:
                rest = rest[rest.index("box") + 1 :]
                yield list(takewhile(lambda word: word[0] not in SHELL, rest))
                rest = rest[rest.index("&&") :] if "&&" in rest else []


FILES = [p for p in project_files() if p.suffix == ".md" or p.match("examples/*.box.*")]
SHOWN = [
    pytest.param(words, id=f"{path.relative_to(ROOT)}: {shlex.join(words)}")
    for path in FILES
    for words in commands(path)
]


def test_there_are_many() -> None:
    assert len(SHOWN) > 40


@pytest.mark.parametrize("words", SHOWN)
def test_a_command_shown_to_people_is_one(words: list[str]) -> None:
    own = list(takewhile(lambda word: word != "--", words))
    try:
        chosen = build().parse_args(own)
    except SystemExit as refused:
        raise AssertionError(f"box does not understand: {shlex.join(own)}") from refused
    assert (chosen.verb in ("exec", "run")) == (own != words), "only these take a command"
