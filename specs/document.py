"""A parsed text file: plain data, and where in the file each part of it was written.

Shared by the YAML and the TOML reader, so that whoever judges the data can point at a line. It
must not know any field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specs.errors import Problem
from specs.text import code_point, visible

# Bounds that no hand-written file comes near and that keep every reader fast on a hostile one.
SIZE_MAX = 256 * 1024  # bytes of one file
DEPTH_MAX = 16  # nested lists and maps
NODES_MAX = 10_000  # values and keys, counted after aliases are expanded
PROBLEMS_MAX = 50  # mistakes reported for one file

Path = tuple[str | int, ...]

# YAML 1.2 (5.1): what may stand in a file. NUL and terminal escapes may not.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BYTE_ORDER_MARK = "\ufeff"


class Place(NamedTuple):
    """A position in a file, both numbers counted from 1; the column counts characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """`values`, `keys` and `texts` map a path to where its value and key begin, and to the value's
    own spelling when it is a single word."""

    data: dict[str, Any]
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)
    texts: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> Place:
        """Where the value at `path`, or the nearest thing around it, begins."""
        return _nearest(self.values, path)

    def key_place(self, path: Path) -> Place:
        """Where the key at `path` begins."""
        return self.keys.get(path) or self.place(path)


class Unreadable(Exception):
    """Reading cannot go on after this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _nearest(places: dict[Path, Place], path: Path) -> Place:
    for length in range(len(path), -1, -1):
        if place := places.get(path[:length]):
            return place
    return Place(1, 1)


def dotted(path: Path) -> str:
    """`data.size_mib`, `mounts[0].host`; unprintable characters escaped."""
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{visible(p, 80)}" for p in path)
    return text.removeprefix(".")


def decode(data: bytes, file: str) -> str:
    """The text in `data` without a byte order mark; raises Unreadable when it is not text."""
    if len(data) > SIZE_MAX:
        message = f"the file has {len(data)} bytes, at most {SIZE_MAX} are read"
        raise Unreadable(Problem(file, 1, 1, "", message, "keep large content out of this file"))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Unreadable(Problem(file, 1, 1, "", "this is UTF-16", "save the file as UTF-8"))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        line, column = place_after(before)
        message = f"byte 0x{data[error.start]:02X} is not UTF-8"
        raise Unreadable(
            Problem(file, line, column, "", message, "save the file as UTF-8")
        ) from None
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if found := _UNPRINTABLE.search(text):
        line, column = place_after(text[: found.start()])
        message = f"{code_point(found.group())} is not allowed in a text file"
        raise Unreadable(Problem(file, line, column, "", message, "remove the character"))
    return text


def place_after(text: str) -> Place:
    """The position right behind `text`."""
    return Place(text.count("\n") + 1, len(text) - text.rfind("\n"))


def odd_key(key: str) -> str:
    """What is wrong with the characters of a key, naming the code point; empty when nothing."""
    for character in key:
        if not " " <= character <= "~":
            return f"the key contains {code_point(character)}"
    return "" if key.strip() == key and key else "the key is empty or has spaces around it"
