"""Read one TOML file as plain data with positions as good as the standard parser allows.

`tomllib` keeps no positions, so a scan of the lines finds where tables and keys begin; what it
does not see (inside inline tables and arrays) gets the place of the line around it. It must not
know any field.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from specs.document import (
    DEPTH_MAX,
    NODES_MAX,
    Document,
    Path,
    Place,
    Unreadable,
    decode,
    dotted,
    odd_key,
)
from specs.errors import Problem
from specs.text import visible

# Possessive quantifiers (Python 3.11): no line, however odd, is scanned in more than linear time.
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_KEY = rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+"
_TABLE_LINE = re.compile(rf"^[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]\]?")
_KEY_LINE = re.compile(rf"^[ \t]*({_KEY})[ \t]*=[ \t]*")
_NUMBER = re.compile(r"([-+0-9][0-9A-Za-z_.:+-]*)[ \t]*(?:#.*)?$")
_SPLIT = re.compile(_PART)
# tomllib compares every prefix of a dotted key, in quadratic time: such a key is refused unread.
_PARTS_MAX = 64
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_PARTS_MAX}}}")
_PLACE_IN_MESSAGE = re.compile(r"\(at line (\d+), column (\d+)\)")


def parse_toml(data: bytes, file: str) -> tuple[Document | None, tuple[Problem, ...]]:
    """The document in `data` and its mistakes; no document when it is not TOML.

    Never raises for any bytes. Values are str, int, float, bool, dates, lists and dicts.
    """
    try:
        text = decode(data, file).replace("\r\n", "\n")
        document = Document(_load(text, file))
        _locate(document, text)
        problems = tuple(_check(document.data, (), file, document, [0]))
    except Unreadable as stop:
        return None, (stop.problem,)
    return document, problems


def _load(text: str, file: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if found := _LONG_KEY.search(line):
            message = f"more than {_PARTS_MAX} words joined by dots"
            raise Unreadable(Problem(file, number, found.start() + 1, "", message, "shorten it"))
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Unreadable(Problem(file, 1, 1, "", "nested too deeply", "flatten it")) from None
    except ValueError as error:  # TOMLDecodeError is one; a number of 5,000 digits is another
        said = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "a number is too large"
        place = Place(1, 1)
        if found := _PLACE_IN_MESSAGE.search(said):
            place = Place(int(found.group(1)), int(found.group(2)))
        elif "end of document" in said:
            place = Place(text.count("\n") + 1, 1)
        said = _PLACE_IN_MESSAGE.sub("", said).strip()
        raise Unreadable(
            Problem(file, *place, "", f"not TOML: {visible(said)}", "correct the line")
        ) from None


def _locate(document: Document, text: str) -> None:
    """Fill in the positions of the tables and keys that stand at the start of a line."""
    table: Path = ()
    arrays: dict[Path, int] = {}
    for number, line in _code_lines(text):
        if found := _TABLE_LINE.match(line):
            table = _parts(found.group(2))
            if found.group(1) == "[[":
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            _put(document, table, Place(number, found.start(1) + 1), None)
        elif found := _KEY_LINE.match(line):
            path = (*table, *_parts(found.group(1)))
            key = Place(number, found.start(1) + 1)
            _put(document, path, key, Place(number, found.end() + 1))
            if number_found := _NUMBER.match(line, found.end()):
                document.texts.setdefault(path, number_found.group(1))


def _put(document: Document, path: Path, key: Place, value: Place | None) -> None:
    document.keys.setdefault(path, key)
    document.values.setdefault(path, value or key)


def _code_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines that do not begin inside a multi-line string."""
    closing = ""
    for number, line in enumerate(text.split("\n"), 1):
        if closing:
            if closing in line:
                closing = ""
            continue
        yield number, line
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2 == 1:
                closing = quotes
                break


def _parts(key: str) -> Path:
    return tuple(part.strip("\"'") for part in _SPLIT.findall(key))


def _check(
    value: Any, path: Path, file: str, document: Document, seen: list[int]
) -> Iterator[Problem]:
    """Bounds and keys of a parsed value; `seen` counts the values of the whole document."""
    seen[0] += 1
    if seen[0] > NODES_MAX:
        raise Unreadable(Problem(file, 1, 1, "", f"more than {NODES_MAX} values", "write less"))
    if len(path) > DEPTH_MAX:
        message = f"nested deeper than {DEPTH_MAX} levels"
        raise Unreadable(Problem(file, *document.place(path), dotted(path), message, "flatten it"))
    if isinstance(value, dict):
        for key, child in list(value.items()):
            here = (*path, key)
            if fault := odd_key(key):
                place = document.key_place(here)
                yield Problem(file, *place, dotted(here), fault, "type the key again in ASCII")
                del value[key]
            yield from _check(child, here, file, document, seen)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _check(child, (*path, index), file, document, seen)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        place = document.place(path)
        yield Problem(file, *place, dotted(path), "the number is too large", "use a smaller one")
