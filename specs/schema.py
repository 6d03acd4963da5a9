"""The JSON Schema of a Boxfile, so that editors complete and check it while it is written.

Made from the model, never written by hand. It must not promise what is not built: such fields say
so.
"""

from __future__ import annotations

from typing import Any

from specs.boxfile import Boxfile, without_unsupported

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


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
            described["description"] = f"Not supported yet. {described['description']}"
    for definition in schema.get("$defs", {}).values():
        definition.pop("description", None)
    schema["title"] = "Boxfile"
    schema["description"] = "One sandbox: a microVM confined on its host."
    return {"$schema": _DIALECT, **schema}
