"""Which files of the folder are Boxfiles (shared case W6)."""

from __future__ import annotations

import pytest

from specs.parse import is_ignored, name_from_filename


@pytest.mark.parametrize(
    "path",
    [
        "agent.box.yaml",
        "agent.box.yml",
        "agent.box.toml",
        "agent.yaml",
        "agent.yml",
        "agent/Boxfile",
    ],
)
def test_every_form_stands_for_the_name(path: str) -> None:
    assert name_from_filename(path) == "agent"
    assert name_from_filename(f"feed.d/{path}") == "agent"


@pytest.mark.parametrize(
    "filename",
    [
        ".pine.yaml.swp",
        "pine.yaml~",
        "#pine.yaml#",
        ".#pine.yaml",
        "pine.yaml.bak",
        ".hidden.yaml",
        "pine.yaml.tmp",
        "pine.yaml.swp",
        "pine.yaml___jb_tmp___",
        "..data",
        "",
    ],
)
def test_litter_of_editors_is_ignored(filename: str) -> None:
    assert is_ignored(filename)
    assert name_from_filename(filename) is None


@pytest.mark.parametrize(
    "path", ["README.md", "agent", "agent.toml", "Boxfile", "agent.json", ".yaml", "a.yaml/x"]
)
def test_other_files_declare_nothing(path: str) -> None:
    assert name_from_filename(path) is None


def test_bad_name_is_returned_for_the_reader_to_report() -> None:
    assert name_from_filename("My_Agent.yaml") == "My_Agent"
