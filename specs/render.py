"""Write a Boxfile as YAML that every YAML reader, of version 1.1 too, understands in the same way.

It must not lose anything: what it writes parses back to an equal value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specs.boxfile import Boxfile
from specs.text import visible
from specs.yamlscalar import is_plain_text

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*(?::[A-Za-z0-9_./+-]+)*")
# YAML 1.1 reads these words as booleans, and `a:b` of digits as numbers in base 60.
_WORDS_OF_1_1 = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_INDENT = "  "


def render_yaml(box: Boxfile, comments: Mapping[str, str] | None = None) -> str:
    """The fields of `box` that differ from their defaults, as YAML ending in a line break.

    `comments` maps a top-level field to a line written above it.
    """
    notes = comments or {}
    lines: list[str] = []
    for field, value in box.to_plain().items():
        if note := notes.get(field):
            lines.append(f"# {visible(note, 90)}")
        lines.extend(_entry(field, value, ""))
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any, indent: str) -> Iterator[str]:
    head = f"{indent}{_scalar(key)}:"
    if isinstance(value, Mapping) and value:
        yield head
        for inner_key, inner in value.items():
            yield from _entry(inner_key, inner, indent + _INDENT)
    elif isinstance(value, list) and value:
        yield head
        for item in value:
            yield from _item(item, indent + _INDENT)
    else:
        yield f"{head} {_flow(value)}"


def _item(item: Any, indent: str) -> Iterator[str]:
    if not (isinstance(item, Mapping) and item):
        yield f"{indent}- {_flow(item)}"
        return
    first = True
    for key, value in item.items():
        for line in _entry(key, value, indent + _INDENT):
            yield f"{indent}- {line[len(indent) + 2 :]}" if first else line
            first = False


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_scalar(k)}: {_flow(v)}" for k, v in value.items())
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_1_1
    return value if plain and is_plain_text(value) else _quoted(value)


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    if character in "\n\t":
        return "\\n" if character == "\n" else "\\t"
    value = ord(character)
    if value < 0x100:
        return f"\\x{value:02x}"
    return f"\\u{value:04x}" if value < 0x10000 else f"\\U{value:08x}"
