"""What people read first must lead somewhere, and show commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.lint.test_tree import text_of
from tests.lint.tree import ROOT, project_files

LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)[^)\s]*\)")


def documents() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".md"]


def test_every_relative_link_leads_to_a_file() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in documents()
        for target in LINK.findall(text_of(path))
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_the_readme_leads_to_every_document() -> None:
    linked = {(ROOT / target).resolve() for target in LINK.findall(text_of(ROOT / "README.md"))}
    explained = [p for p in documents() if p.name not in ("README.md",)]
    assert [str(p.relative_to(ROOT)) for p in explained if p not in linked] == []


def test_dev_knows_every_command_that_the_readme_names() -> None:
    named = set(re.findall(r"\./dev (\w[\w-]*)", text_of(ROOT / "README.md")))
    known = set(re.findall(r"^    (\w[\w-]*)(?: \||\))", text_of(ROOT / "dev"), re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named - known == set()


def test_the_table_of_hostile_trees_names_tests_that_exist() -> None:
    text = text_of(ROOT / "docs" / "testing.md")
    section = text.partition("## Hostile trees and archives\n")[2].partition("\n## ")[0]
    words = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]*)+)`", section))
    assert len(words) > 20
    tests = [p for p in project_files() if p.name.startswith("test_") and p.suffix == ".py"]
    known = [n for p in tests for n in re.findall(r"^def (test_\w+)", text_of(p), re.MULTILINE)]
    assert [word for word in sorted(words) if not any(word in name for name in known)] == []
