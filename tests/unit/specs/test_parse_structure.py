"""Keys, documents and encodings (shared cases Y4 and Y6)."""

from __future__ import annotations

import pytest

from tests.unit.specs.helpers import accepted, only_problem, place, problems

PLAIN = "cpus: 4\nenv:\n  A: x\n  B: |\n    one\n    two\n"


def test_duplicate_key_is_refused_naming_both_lines() -> None:
    filler = "".join(f"# line {n}\n" for n in range(2, 42))
    problem = only_problem(f"restart: never\n{filler}restart: always\n")
    assert place(problem) == (42, 1)
    assert "line 1 " in problem.message + " "
    assert "line 42" in problem.message


def test_duplicate_of_a_field_that_is_not_built_is_still_called_a_duplicate() -> None:
    found = problems("egress: none\ncpus: 2\negress: all\n")
    assert any("written twice, on line 1 and on line 3" in p.message for p in found)


def test_duplicate_inside_a_nested_map_has_its_path() -> None:
    assert only_problem("env:\n  A: x\n  A: y\n").field == "env.A"


def test_quoted_and_plain_spelling_of_a_key_are_one_key() -> None:
    assert "written twice" in only_problem('cpus: 2\n"cpus": 3\n').message


def test_merge_key_is_refused_as_unsupported_and_not_as_a_duplicate() -> None:
    text = "env: &base\n  A: x\nlabels:\n  <<: *base\n  A: y\n"
    problem = only_problem(text)
    assert "merge keys" in problem.message
    assert "twice" not in problem.message
    assert place(problem) == (4, 3)


@pytest.mark.parametrize(
    ("text", "column"),
    [("egress: [[2001:db8::10]:443]\n", 10), ("egress:\n- [2001:db8::/32]:443\n", 3)],
)
def test_an_address_in_brackets_without_quotes_is_answered_with_them(
    text: str, column: int
) -> None:
    problem = only_problem(f"network: bridge\n{text}")
    assert problem.fix.startswith('quote it: "[2001:db8::')
    assert problem.column == column


def test_small_alias_is_the_value_it_stands_for() -> None:
    box = accepted("env:\n  A: &x hello\n  B: *x\n")
    assert box.env == {"A": "hello", "B": "hello"}


def test_alias_without_anchor_and_alias_of_itself_are_refused() -> None:
    assert "no &anchor" in only_problem("env:\n  A: *nobody\n").message
    assert "contains itself" in only_problem("env: &e\n  A: *e\n").message


def test_tags_are_refused() -> None:
    problem = only_problem("env:\n  A: !!str x\n")
    assert "tags are not supported" in problem.message
    assert place(problem) == (2, 6)
    assert "tags" in only_problem("env: !!omap\n  A: x\n").message
    assert "tag" in only_problem("env:\n  A: !e!x y\n").message


def test_directive_of_yaml_1_1_is_refused_and_of_1_2_is_allowed() -> None:
    assert "directives" in only_problem("%YAML 1.1\n---\ncpus: 2\n").message
    assert accepted("%YAML 1.2\n---\ncpus: 3\n").cpus == 3


def test_byte_order_mark_and_crlf_equal_the_plain_file() -> None:
    windows = b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n").encode()
    assert accepted(windows) == accepted(PLAIN)
    assert accepted(windows).digest() == accepted(PLAIN).digest()
    toml = b"\xef\xbb\xbfcpus = 4\r\n[env]\r\nA = 'x'\r\n"
    assert accepted(toml, file="fern.box.toml").env == {"A": "x"}


def test_positions_after_a_byte_order_mark_and_crlf_are_those_of_the_plain_file() -> None:
    bad = "cpus: 4\nenv:\n  A: 1.10\n"
    windows = b"\xef\xbb\xbf" + bad.replace("\n", "\r\n").encode()
    assert place(only_problem(windows)) == place(only_problem(bad)) == (3, 6)


@pytest.mark.parametrize(
    "text",
    [
        "cpus: 4\n\u00a0\u00a0ram_mib: 512\n",
        "data:\n\u00a0\u00a0size_mib: 100\n",
        "env:\n  A: x\n\u00a0 B: y\n",
        "env:\n  A: x\n  \u00a0no colon here\n  B: y\n",
        "cpus: 2\n\u00a0no colon here\n",
    ],
)
def test_no_break_space_indentation_is_refused_showing_the_code_point(text: str) -> None:
    found = problems(text)
    assert any("U+00A0 NO-BREAK SPACE" in p.message for p in found)
    line = next(n for n, row in enumerate(text.split("\n"), 1) if "\u00a0" in row)
    assert {p.line for p in found if "U+00A0" in p.message} == {line}


def test_cyrillic_letter_in_a_key_is_refused_showing_the_code_point() -> None:
    problem = only_problem("ram_mib: 512\nr\u0430m_mib: 1024\n")
    assert "U+0430 CYRILLIC SMALL LETTER A" in problem.message
    assert place(problem) == (2, 1)


def test_cyrillic_letter_in_a_variable_name_is_refused_too() -> None:
    assert "U+0430" in only_problem("env:\n  P\u0430TH: /bin\n").message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"# only a comment\n",
        b"---\n",
        b"---\n---\n",
        b"~\n",
        b"--- ~\n",
        b"\xef\xbb\xbf",
    ],
)
def test_empty_file_is_a_mistake_and_not_a_sandbox(data: bytes) -> None:
    found = problems(data)
    assert any("empty" in p.message for p in found)


def test_unknown_key_without_value_is_a_mistake_and_not_an_empty_sandbox() -> None:
    assert only_problem("spec: ~\n").field == "spec"


@pytest.mark.parametrize("text", ["- cpus: 2\n", "hello\n", "5\n", "[]\n"])
def test_document_that_is_no_map_is_refused(text: str) -> None:
    assert "map of fields" in only_problem(text).message


@pytest.mark.parametrize("second", ["cpus: 3\n", "", "!!! nonsense [\n"])
def test_two_documents_are_refused_and_the_first_is_never_taken_alone(second: str) -> None:
    problem = problems(f"cpus: 2\n---\n{second}")[0]
    assert "second document" in problem.message
    assert problem.line == 2


def test_other_encodings_are_refused_with_the_byte_and_its_place() -> None:
    problem = only_problem(b"cpus: 2\nenv:\n  A: caf\xe9\n")
    assert "0xE9" in problem.message
    assert place(problem) == (3, 9)
    assert "UTF-16" in only_problem("cpus: 2\n".encode("utf-16")).message


def test_terminal_escape_in_the_file_is_refused_and_not_echoed() -> None:
    problem = only_problem(b"base: \x1b[31mred\n")
    assert "U+001B" in problem.message
    assert "\x1b" not in str(problem)


def test_terminal_escape_behind_a_yaml_escape_is_refused_and_not_echoed() -> None:
    found = problems('labels:\n  a: "\\e[31m"\nstate: "\\e[2J"\n"cp\\eus": 2\n')
    assert len(found) == 3
    assert all("\x1b" not in str(problem) for problem in found)


def test_tab_indentation_is_explained() -> None:
    assert "tab" in only_problem("env:\n\tA: x\n").message


def test_unclosed_quote_is_reported_where_it_opens() -> None:
    assert place(only_problem("cpus: 2\nbase: 'x\nstate: running\n")) == (2, 7)


@pytest.mark.parametrize("key", ["5", "true", "~", "[a, b]", "0755", '""', '" a"'])
def test_key_that_is_not_a_plain_word_is_refused(key: str) -> None:
    assert only_problem(f"cpus: 2\n? {key}\n: x\n").line == 2
