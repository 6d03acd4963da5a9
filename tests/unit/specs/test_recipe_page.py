"""docs/recipe.md says what the models and the steps do."""

from __future__ import annotations

import re

from specs.blueprint import Blueprint, Encoding, User, WrittenFile
from specs.packages import check_package
from specs.recipe import steps
from tests.pages import DOCS, boxfile_in
from tests.unit.specs.helpers import accepted

PAGE = (DOCS / "recipe.md").read_text()


def test_the_example_is_accepted_and_has_the_steps_that_the_page_tells_of() -> None:
    found = steps(accepted(boxfile_in("recipe.md", "tool")))
    assert [step.kind for step in found] == ["packages", "blueprint", "run", "run", "run"]
    assert found[2].argv[:-1] == ("/bin/sh", "-e", "-c")


def test_the_page_has_every_field_of_a_blueprint_and_no_other() -> None:
    text = PAGE.partition("## Blueprint")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {field for cell in cells for field in re.findall(r"`([^`]+)`", cell)}
    wanted = {f"users[].{name}" for name in User.model_fields}
    wanted |= {f"write_files[].{name}" for name in WrittenFile.model_fields}
    assert named == wanted | {"runcmd"}
    assert {*Blueprint.model_fields} == {"users", "write_files", "runcmd"}
    assert f"`{Encoding.b64}`" in text


def test_the_names_that_the_page_gives_are_packages() -> None:
    text = PAGE.partition("Names are as it takes them: ")[2].partition(". What")[0]
    names = re.findall(r"`([^`]+)`", text)
    assert len(names) == 5
    for name in names:
        check_package(name)
