"""From the bytes of a Boxfile to a value, or to every mistake in them at once.

The boundary where a user's text becomes ours: it never raises for any bytes, it is bounded in time
and memory (`specs.document`), and it accepts nothing that the product would then ignore. It does
no I/O.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from specs.boxfile import WHOLE_FIELDS, Boxfile, supported_values, unsupported
from specs.document import Document, Path, Place, dotted
from specs.errors import BadName, Problem
from specs.filename import is_ignored, name_from_filename
from specs.mountpaths import MOUNTS_MAX, clashes
from specs.names import check_name
from specs.render import render_yaml
from specs.schema import boxfile_schema
from specs.text import visible
from specs.tomltext import parse_toml
from specs.validate import in_order, judge
from specs.yamltext import parse_yaml

__all__ = [
    "Parsed",
    "boxfile_schema",
    "is_ignored",
    "name_from_filename",
    "parse_boxfile",
    "place_of",
    "render_yaml",
]


@dataclass(frozen=True, slots=True)
class Parsed:
    """`box` is None exactly when there are problems; `digest` is SHA-256, in hex, of the bytes."""

    box: Boxfile | None
    problems: tuple[Problem, ...]
    digest: str


def parse_boxfile(data: bytes, *, file: str, expected_name: str | None) -> Parsed:
    """Judge the text of one Boxfile; TOML when `file` ends in `.toml`, else YAML.

    `expected_name` is the name the file name stands for; None when there is none (standard input),
    and then the text must hold `name`. Never raises for bad input.
    """
    file = visible(file, 300)
    digest = hashlib.sha256(data).hexdigest()
    read = parse_toml if file.endswith(".toml") else parse_yaml
    document, problems = read(data, file)
    if document is None:
        return Parsed(None, problems, digest)
    box, problems = _judge(document, file, expected_name, problems)
    return Parsed(box, in_order(problems), digest)


def place_of(data: bytes, file: str, path: Path) -> Place:
    """Where in a Boxfile the value at `path`, or the nearest thing around it, begins."""
    document, _ = (parse_toml if file.endswith(".toml") else parse_yaml)(data, visible(file, 300))
    return (document or Document({})).place(path)


def _judge(
    document: Document, file: str, expected_name: str | None, known: tuple[Problem, ...]
) -> tuple[Boxfile | None, tuple[Problem, ...]]:
    problems = [*known, *_not_built(document, file), *_name(document, file, expected_name)]
    problems += _pointless(document, file)
    problems += _mounts(document, file)
    return judge(Boxfile, document, file, problems, WHOLE_FIELDS)


def _mounts(document: Document, file: str) -> list[Problem]:
    """Guest paths that hide each other; what else is wrong with a mount is the model's to say."""
    written = document.data.get("mounts")
    mounts = written if isinstance(written, list) else []
    written_as = [each.get("guest") if isinstance(each, dict) else None for each in mounts]
    guests = [each for each in written_as if isinstance(each, str)]
    if len(guests) != len(mounts):
        return []
    found = []
    for index, message in clashes(guests[: MOUNTS_MAX * 2]):
        path = ("mounts", index, "guest")
        fix = "choose another guest path"
        found.append(Problem(file, *document.place(path), dotted(path), message, fix))
    return found


def _not_built(document: Document, file: str) -> list[Problem]:
    """Problems for fields whose feature is not built; such fields are taken out of the data."""
    found = []
    for field in list(document.data):
        why = unsupported(field, document.data[field])
        if why:
            place = document.key_place((field,))
            values = supported_values(field)
            fix = f"write {values[0]}" if values else "remove the line"
            found.append(Problem(file, *place, field, why, fix))
            del document.data[field]
    return found


def _pointless(document: Document, file: str) -> list[Problem]:
    """A rule for a network that is not there was meant to do something."""
    if "egress" not in document.data or document.data.get("network", "none") != "none":
        return []
    place = document.key_place(("egress",))
    message = "there is no network whose egress this could be"
    return [Problem(file, *place, "egress", message, 'write "network: bridge", or remove the line')]


def _name(document: Document, file: str, expected_name: str | None) -> list[Problem]:
    """Problems of the name; afterwards the data holds a valid one if that is possible."""
    written = document.data.get("name")
    if expected_name is None:
        return []
    try:
        check_name(expected_name)
    except BadName as error:
        document.data["name"] = "unnamed"
        return [Problem(file, 1, 1, "name", f"from the file name: {error.message}", error.fix)]
    if "name" not in document.data:
        document.data["name"] = expected_name
        return []
    if not isinstance(written, str) or written == expected_name:
        return []
    place = document.place(("name",))
    message = f'"{visible(written, 80)}" is not the name that the file stands for, {expected_name}'
    fix = f'write "name: {expected_name}", remove the line, or rename the file'
    return [Problem(file, *place, "name", message, fix)]
