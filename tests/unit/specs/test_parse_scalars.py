"""Words that change their type on the way through YAML (shared case Y1)."""

from __future__ import annotations

import pytest

from tests.unit.specs.helpers import accepted, only_problem, place, problems


def test_name_no_is_the_word_no_and_never_a_box_called_false() -> None:
    assert accepted("name: no", name="no").name == "no"
    assert '"no" is not the name' in only_problem("name: no", name="fern").message


def test_country_code_and_port_pair_stay_the_text_that_was_written() -> None:
    box = accepted("env:\n  REGION: NO\n  PORTS: 2222:22\n  SWITCH: on\n  DAY: 2026-11-29\n")
    assert box.env == {"REGION": "NO", "PORTS": "2222:22", "SWITCH": "on", "DAY": "2026-11-29"}


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("1.10", "a number"),
        ("17", "a number"),
        ("0x1F", "a number"),
        ("1e3", "a number"),
        (".inf", "a number"),
        ("true", "true or false"),
        ("False", "true or false"),
    ],
)
def test_text_field_refuses_what_is_not_text_and_says_quote_it(written: str, what: str) -> None:
    problem = only_problem(f"env:\n  TAG: {written}\n")
    assert problem.field == "env.TAG"
    assert place(problem) == (2, 8)
    assert what in problem.message
    assert problem.fix.startswith("quote it: ")
    if what == "a number":  # the very spelling: 1.10 must not come back as 1.1
        assert problem.fix == f'quote it: "{written}"'
    assert accepted(f'env:\n  TAG: "{written}"\n').env == {"TAG": written}


def test_top_level_text_fields_refuse_numbers_with_their_path() -> None:
    problem = only_problem("base: 1.10\n")
    assert (problem.field, problem.fix) == ("base", 'quote it: "1.10"')


def test_number_as_name_is_refused_even_when_the_file_has_that_name() -> None:
    problem = only_problem("name: 17", name="17")
    assert problem.field == "name"
    assert "quote it" in problem.fix
    assert accepted('name: "17"', name="17").name == "17"


@pytest.mark.parametrize("field", ["env:\n  MODE", "labels:\n  mode", "cpus"])
def test_leading_zero_is_refused_everywhere_as_two_numbers_in_one(field: str) -> None:
    found = only_problem(f"{field}: 0755\n")
    assert "leading zero" in found.message
    assert 'quote it: "0755"' in found.fix


def test_digits_grouped_by_underscores_are_text_and_no_number() -> None:
    problem = only_problem("ram_mib: 1_000\n")
    assert problem.field == "ram_mib"
    assert problem.fix == "write 1000"
    assert accepted("env:\n  N: 1_000\n").env == {"N": "1_000"}


@pytest.mark.parametrize("written", ["true", "2.0", '"2"', "two", "~", "[2]", "{a: 2}", "1e1"])
def test_number_field_takes_whole_numbers_only(written: str) -> None:
    assert only_problem(f"cpus: {written}\n").field == "cpus"


def test_size_with_a_unit_is_converted_in_the_fix() -> None:
    assert "2048" in only_problem("ram_mib: 2GiB\n").fix
    assert "512" in only_problem("data: {size_mib: 512M}\n").fix


@pytest.mark.parametrize(("word", "meant"), [("no", "false"), ("on", "true"), ("Yes", "true")])
def test_words_of_yaml_1_1_for_booleans_are_refused_with_the_right_word(
    word: str, meant: str
) -> None:
    assert meant in only_problem(f"readonly: {word}\n").fix


def test_huge_number_is_one_problem_and_not_a_crash() -> None:
    assert "too large" in only_problem("cpus: " + "9" * 5000).message
    assert "too large" in only_problem("cpus: 17").message


def test_half_a_surrogate_pair_is_refused() -> None:
    found = problems('env:\n  A: "\\uD800"\n')
    assert [problem.field for problem in found] == ["env.A"]


def test_toml_values_follow_the_same_rules() -> None:
    text = "[env]\nTAG = 1.10\nDAY = 2026-11-29\nON = true\n"
    found = problems(text, file="fern.box.toml")
    assert [(p.field, p.line) for p in found] == [("env.TAG", 2), ("env.DAY", 3), ("env.ON", 4)]
    assert found[0].fix == 'quote it: "1.10"'
