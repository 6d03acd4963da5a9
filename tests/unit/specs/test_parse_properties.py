"""Properties that hold for any bytes and any Boxfile."""

from __future__ import annotations

import tomli_w
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from specs.boxfile import Boxfile
from specs.change import changes
from specs.parse import parse_boxfile, render_yaml
from specs.tomltext import parse_toml
from specs.yamltext import parse_yaml
from tests.unit.specs.helpers import accepted
from tests.unit.specs.strategies import boxfiles

FILES = st.sampled_from(["a.yaml", "a.box.toml"])

# Pieces of both languages, so that random text gets past the first line.
_WORDS = ["cpus", "env", "data", "size_mib", "name", "a", "1", "1.10", "true", "no", "0755", "~"]
_SYNTAX = [":", ": ", "=", " = ", "- ", "[", "]", "{", "}", ",", "'", '"', '"' * 3, "|", ">", "?"]
_MARKS = ["&a ", "*a", "!!str ", "<<", "---\n", "...\n", "%YAML 1.2\n", "#", "\\", "\\u", "[["]
_SPACES = ["\n", "\n  ", "\t", "\r\n", "\u00a0", "\u0430", "\ufeff", "\x00", "\x85", "\u2028"]
_PIECES = st.sampled_from([*_WORDS, *_SYNTAX, *_MARKS, *_SPACES, "0x", "1e9", "2026-11-29"])
_SOUP = st.lists(st.one_of(_PIECES, st.text(max_size=3)), max_size=60).map("".join)


def _judge(data: bytes, file: str, name: str | None) -> None:
    parsed = parse_boxfile(data, file=file, expected_name=name)
    assert (parsed.box is None) == bool(parsed.problems)
    lines = data.count(b"\n") + data.count(b"\r") + 2 * data.count(b"\xe2\x80") + 2 + len(data)
    for problem in parsed.problems:
        assert 1 <= problem.line <= lines
        assert problem.column >= 1
        assert problem.message
        assert str(problem).isprintable()


@settings(max_examples=400)
@given(data=st.binary(max_size=300), file=FILES, name=st.sampled_from(["a", None]))
@example(data=b"%YAML 1.99999\n---\na: 1", file="a.yaml", name="a")
@example(data=b'a: "\\U00110000"', file="a.yaml", name="a")
@example(data=b'env:\n  "\\uD800": x', file="a.yaml", name="a")
def test_any_bytes_give_a_box_or_problems_and_never_an_exception(
    data: bytes, file: str, name: str | None
) -> None:
    _judge(data, file, name)


@settings(max_examples=800)
@given(text=_SOUP, file=FILES, name=st.sampled_from(["a", None]))
def test_any_mixture_of_syntax_gives_a_box_or_problems(
    text: str, file: str, name: str | None
) -> None:
    _judge(text.encode("utf-8", "surrogatepass"), file, name)


@settings(max_examples=300)
@given(text=_SOUP)
def test_readers_never_raise(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    for read in (parse_yaml, parse_toml):
        document, problems = read(data, "x")
        assert document is not None or problems


@settings(max_examples=300)
@given(box=boxfiles())
def test_rendered_boxfile_parses_back_equal(box: Boxfile) -> None:
    text = render_yaml(box, comments={"cpus": "a note", "env": "another\nline"})
    assert accepted(text, name=box.name) == box
    assert accepted(text.replace("\n", "\r\n"), name=box.name) == box


@settings(max_examples=100)
@given(box=boxfiles())
def test_boxfile_written_as_toml_parses_back_equal(box: Boxfile) -> None:
    text = tomli_w.dumps(box.to_plain())
    assume(
        text.replace("\n", "").isprintable()
    )  # the writer leaves C1 controls raw, we refuse them
    assert accepted(text, file="a.box.toml", name=box.name) == box


@settings(max_examples=200)
@given(box=boxfiles())
def test_plain_form_builds_the_same_value_again(box: Boxfile) -> None:
    again = Boxfile.model_validate(box.to_plain())
    assert again == box
    assert again.digest() == box.digest()


@settings(max_examples=300)
@given(old=boxfiles(), new=boxfiles(), same=st.booleans())
def test_there_are_no_changes_exactly_when_the_digests_are_equal(
    old: Boxfile, new: Boxfile, same: bool
) -> None:
    other = Boxfile.model_validate(old.to_plain()) if same else new
    assert (changes(old, other) == ()) == (old.digest() == other.digest())


@settings(max_examples=100)
@given(box=boxfiles(), data=st.data())
def test_one_changed_field_is_one_change_of_that_field(box: Boxfile, data: st.DataObject) -> None:
    cpus = data.draw(st.integers(1, 16).filter(lambda n: n != box.cpus))
    (change,) = changes(box, box.model_copy(update={"cpus": cpus}))
    assert (change.field, change.old, change.new) == ("cpus", str(box.cpus), str(cpus))
