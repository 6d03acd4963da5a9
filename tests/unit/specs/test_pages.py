"""docs/boxfile.md and docs/configuration.md say what the models do: fields, defaults, limits."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from specs.boxfile import WHOLE_FIELDS, Backend, Boxfile, Data, supported_values
from specs.ceiling import Ceiling
from specs.config import Config
from specs.filename import name_from_filename
from specs.parse import parse_boxfile

DOCS = Path(__file__).resolve().parents[3] / "docs"
BOXFILE = (DOCS / "boxfile.md").read_text()
CONFIGURATION = (DOCS / "configuration.md").read_text()


def section(page: str, title: str) -> str:
    return page.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each table row by its first one, without backquotes."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            first, *others = (cell.strip() for cell in line.strip("|").split("|"))
            found[first.strip("`")] = others
    return found


def supported() -> dict[str, FieldInfo]:
    fields = {
        name: one
        for name, one in Boxfile.model_fields.items()
        if name not in WHOLE_FIELDS and name != "data"
    }
    return fields | {f"data.{name}": one for name, one in Data.model_fields.items()}


def test_the_page_has_a_row_for_every_field_that_works_and_for_no_other() -> None:
    assert set(rows(section(BOXFILE, "Fields"))) == set(supported())


def test_the_page_gives_every_default() -> None:
    listed = rows(section(BOXFILE, "Fields"))
    for name, one in supported().items():
        if name == "name":
            continue
        default = one.get_default()
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        shown = "[]" if default == () else shown
        wanted = "left out" if default is None else f"`{shown}`"
        assert listed[name][0] == wanted, name


def test_the_page_gives_every_limit_and_choice() -> None:
    listed = rows(section(BOXFILE, "Fields"))
    schema = Boxfile.model_json_schema()
    for name, one in supported().items():
        values = listed[name][1]
        for limit in one.metadata:
            if isinstance(limit, Ge):
                assert values.startswith(f"{limit.ge} "), name
            if isinstance(limit, Le) and isinstance(limit.le, int) and limit.le < 1000:
                assert values.endswith(f" to {limit.le}"), name
        annotation = getattr(one.annotation, "__name__", "")
        choices = supported_values(name) or tuple(
            schema["$defs"].get(annotation, {}).get("enum", ())
        )
        if choices:
            assert re.findall(r"`([^`]+)`", values) == list(choices), name


def test_the_page_names_what_is_not_supported_yet() -> None:
    text = section(BOXFILE, "Not supported yet")
    named = set(re.findall(r"`([^`]+)`", text))
    unbuilt = {*Backend} - {*supported_values("backend")}
    assert named == {*WHOLE_FIELDS, *map(str, unbuilt), "backend"}


def test_the_files_that_the_page_calls_boxfiles_are_some() -> None:
    for cell in rows(section(BOXFILE, "Which files are Boxfiles")):
        for path in re.findall(r"[\w./]+", cell):
            assert name_from_filename(path) == "agent", path
    for path in ("agent.box.json", "agent.toml", "agent.box.yaml~"):
        assert name_from_filename(path) is None


def test_the_example_in_toml_is_valid() -> None:
    lines = section(BOXFILE, "In TOML").splitlines()
    data = "\n".join(line[4:] for line in lines).encode()
    assert parse_boxfile(data, file="agent.box.toml", expected_name="agent").problems == ()


@pytest.mark.parametrize(("title", "model"), [("policy.toml", Ceiling), ("config.toml", Config)])
def test_the_page_has_a_row_with_the_default_of_every_setting(
    title: str, model: type[BaseModel]
) -> None:
    text = section(CONFIGURATION, title)
    listed = rows(text)
    assert list(listed) == list(model.model_fields)
    for name, one in model.model_fields.items():
        assert shown(listed[name][0]) == one.get_default(), name
    example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    model.model_validate(tomllib.loads(example))


def shown(cell: str) -> Any:
    return None if cell == "left out" else tomllib.loads(f"x = {cell.strip('`')}")["x"]
