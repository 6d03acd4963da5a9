"""The JSON Schema that editors complete Boxfiles with."""

from __future__ import annotations

import json

from specs.boxfile import Boxfile
from specs.parse import boxfile_schema


def test_schema_is_json_and_names_every_field_with_a_description() -> None:
    schema = json.loads(json.dumps(boxfile_schema()))
    assert list(schema["properties"]) == list(Boxfile.model_fields)
    assert all(field.get("description") for field in schema["properties"].values())


def test_schema_refuses_unknown_keys_and_needs_no_name() -> None:
    schema = boxfile_schema()
    assert schema["additionalProperties"] is False
    assert "required" not in schema


def test_schema_offers_the_values_and_limits() -> None:
    schema = boxfile_schema()
    assert schema["properties"]["cpus"]["maximum"] == 16
    assert schema["$defs"]["Isolation"]["enum"] == ["strict", "standard"]


def test_schema_says_what_is_not_built() -> None:
    properties = boxfile_schema()["properties"]
    assert properties["mounts"]["description"].startswith("Not supported yet.")
    assert not properties["cpus"]["description"].startswith("Not supported yet.")
