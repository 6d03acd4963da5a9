"""The JSON Schema that editors complete Boxfiles with."""

from __future__ import annotations

import json
import re

from specs.boxfile import Boxfile
from specs.parse import boxfile_schema, parse_boxfile


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
    assert properties["warmup"]["description"].startswith("Not supported yet.")
    assert not properties["cpus"]["description"].startswith("Not supported yet.")


def test_schema_offers_no_value_that_is_refused() -> None:
    schema = boxfile_schema()
    offered = {field: one["enum"] for field, one in schema["properties"].items() if "enum" in one}
    assert offered["backend"] == ["qemu"]
    for field, values in offered.items():
        for value in values:
            text = f"{field}: {json.dumps(value)}\n".encode()
            parsed = parse_boxfile(text, file="fern.yaml", expected_name="fern")
            assert parsed.problems == (), text
    assert "firecracker" not in json.dumps(schema)


def test_schema_refers_to_every_definition_and_to_no_other() -> None:
    schema = boxfile_schema()
    assert set(re.findall(r"#/\$defs/(\w+)", json.dumps(schema))) == set(schema["$defs"])
