"""The JSON Schema of a Boxfile, so that editors complete and check it while it is written.

Made from the model, never written by hand. It must not offer what is refused: a field whose feature
is not built says so and takes only what asks for nothing.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from specs.boxfile import Boxfile, supported_values, without_unsupported

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = re.compile(r"'#/\$defs/(\w+)'")


def boxfile_schema() -> dict[str, Any]:
    """The schema as JSON-ready data. `name` is optional: the file name stands for it."""
    schema = Boxfile.model_json_schema()
    required = [field for field in schema.get("required", []) if field != "name"]
    schema.pop("required", None)
    if required:
        schema["required"] = required
    for field, described in schema["properties"].items():
        described.pop("title", None)
        if without_unsupported(field):
            words = f"Not supported yet. {described['description']}"
            schema["properties"][field] = {"description": words, "enum": [_nothing(field)]}
        elif values := supported_values(field):
            words = described["description"]
            schema["properties"][field] = {"description": words, "enum": list(values)}
    for definition in schema.get("$defs", {}).values():
        definition.pop("description", None)
    schema["$defs"] = _reachable(schema["properties"], schema.pop("$defs", {}))
    schema["title"] = "Boxfile"
    schema["description"] = "One sandbox: a microVM confined on its host."
    return {"$schema": _DIALECT, **schema}


def _nothing(field: str) -> object:
    """The value of this field that asks for nothing."""
    candidates: tuple[object, ...] = ([], 0)
    for value in candidates:
        try:
            Boxfile.model_validate({"name": "x", field: value})
        except ValidationError:
            continue
        return value
    return None


def _reachable(properties: object, definitions: dict[str, Any]) -> dict[str, Any]:
    """The definitions that are still referred to, directly or not."""
    found: set[str] = set()
    fresh = set(_REFERENCE.findall(repr(properties)))
    while fresh:
        found |= fresh
        fresh = set(_REFERENCE.findall(repr([definitions[name] for name in fresh]))) - found
    return {name: one for name, one in definitions.items() if name in found}
