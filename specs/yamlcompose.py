"""Compose the nodes of one YAML document from the library's event stream, within bounds.

Why not the library's own composer and resolver: they read `1_000` and `0755` in their own way,
keep no position of plain values, call merge keys duplicates and recurse with the nesting of the
input. Here the core schema (YAML 1.2.2, 10.3) decides what a word is, nothing recurses, and every
bound of `specs.document` is checked while events arrive. It must not know any field.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml import events as ev
from ruamel.yaml.error import MarkedYAMLError

from specs.document import DEPTH_MAX, NODES_MAX, Place, Unreadable
from specs.errors import Problem
from specs.text import code_point, visible
from specs.yamlscalar import BadScalar, resolve

# Characters that look like indentation and are not; the tab has a message of its own.
_ODD_INDENT = re.compile(
    "^ *([\\u00a0\\u1680\\u2000-\\u200b\\u202f\\u205f\\u2060\\u3000\\ufeff])", re.MULTILINE
)
# An IPv6 address in its brackets, which YAML takes for a list.
_BRACKETED = re.compile("(?<![\"'])\\[[0-9a-f.]*:[0-9a-f:./]*\\]:[0-9]+", re.IGNORECASE)
EMPTY_FIX = "write at least one field, or delete the file to delete the sandbox"

# What the parser says, and what a person needs to hear.
_EXPLAINED: tuple[tuple[str, str, str], ...] = (
    ("'\\t' that cannot start", "a tab cannot be used for indentation here", "use spaces"),
    ("mapping values are not allowed", 'a ":" is not allowed here', "quote the value, or indent"),
    ("could not find expected ':'", 'a key without ":"', 'write "key: value"'),
    ("expected <block end>", "the indentation does not match the lines above", "align the keys"),
    ("unexpected end of stream", "a quote is opened and never closed", "close the quote"),
    ("that cannot start any token", "a value cannot begin with this character", "quote the value"),
    ("incompatible YAML document", "Boxfiles are YAML 1.2", "remove the %YAML line"),
    ("undefined tag handle", "tags (!name) are not supported", "remove the tag"),
)


@dataclass(slots=True)
class Node:
    """`content` is a scalar's value, a list of nodes, or a list of (key, value) pairs."""

    kind: str
    place: Place
    content: Any = None
    text: str = ""
    plain: bool = False
    size: int = 1
    depth: int = 1
    fault: tuple[str, str] | None = None
    pending_key: Node | None = field(default=None, repr=False)


class Composer:
    """Builds the nodes of the first document, without recursion."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._text = text
        self._anchors: dict[str, Node] = {}
        self._open_anchors: list[str | None] = []
        self._stack: list[Node] = []
        self._problems: list[Problem] = []
        self._root: Node | None = None
        self._documents = 0
        self._nodes = 0

    def compose(self) -> tuple[Node, tuple[Problem, ...]]:
        for event in self._events():
            self._take(event)
            if self._documents > 1:
                break  # the file is refused; what else is in it does not matter
        if self._root is None:
            raise self._stop(Place(1, 1), "the file is empty", EMPTY_FIX)
        return self._root, tuple(self._problems)

    def _events(self) -> Iterator[Any]:
        last = Place(1, 1)
        try:
            for event in YAML(typ="safe", pure=True).parse(io.StringIO(self._text)):
                last = _place(event.start_mark)
                yield event
        except MarkedYAMLError as error:
            raise self._syntax(error) from None
        except Exception as error:
            # The library asserts and overflows on odd directives and escapes.
            message = f"cannot be read as YAML: {visible(str(error))}"
            raise self._stop(last, message, "look at this line and the one after it") from None

    def _take(self, event: Any) -> None:
        place = _place(event.start_mark)
        match event:
            case ev.DocumentStartEvent():
                self._documents += 1
                if event.version not in (None, (1, 2)) or event.tags:
                    self._problem(place, "directives are not supported", "remove the % lines")
                if self._documents == 2:
                    self._problem(
                        place,
                        "a second document begins here, one file declares one sandbox",
                        "remove this --- or move the document to a file of its own",
                    )
            case ev.ScalarEvent():
                self._note_tag(event, place)
                self._add(self._scalar(event, place), event.anchor)
            case ev.AliasEvent():
                self._add(self._alias(event, place), None)
            case ev.MappingStartEvent() | ev.SequenceStartEvent():
                self._note_tag(event, place)
                if len(self._stack) >= DEPTH_MAX:
                    raise self._stop(place, f"nested deeper than {DEPTH_MAX} levels", "flatten it")
                kind = "map" if isinstance(event, ev.MappingStartEvent) else "list"
                self._stack.append(Node(kind, place, []))
                self._open_anchors.append(event.anchor)
            case ev.MappingEndEvent() | ev.SequenceEndEvent():
                self._add(self._stack.pop(), self._open_anchors.pop())

    def _scalar(self, event: Any, place: Place) -> Node:
        plain = event.style is None
        node = Node("scalar", place, event.value, event.value, plain)
        try:
            node.content = resolve(event.value, plain)
        except BadScalar as error:
            node.fault = (error.message, error.fix)
            node.content = ""
        return node

    def _alias(self, event: Any, place: Place) -> Node:
        name = str(event.anchor)
        if name in self._open_anchors:
            raise self._stop(place, f"*{visible(name)} contains itself", "write the value out")
        node = self._anchors.get(name)
        if node is None:
            raise self._stop(place, f"*{visible(name)} has no &anchor above", "write the value out")
        return node

    def _add(self, node: Node, anchor: object) -> None:
        if anchor is not None:
            self._anchors[str(anchor)] = node
        self._nodes += 1
        if not self._stack:
            self._check_bounds(node)
            self._root = node
            return
        parent = self._stack[-1]
        parent.size += node.size
        parent.depth = max(parent.depth, node.depth + 1)
        self._check_bounds(parent)
        if parent.kind == "list":
            parent.content.append(node)
        elif parent.pending_key is None:
            parent.pending_key = node
        else:
            parent.content.append((parent.pending_key, node))
            parent.pending_key = None

    def _check_bounds(self, node: Node) -> None:
        if max(node.size, self._nodes) > NODES_MAX:
            raise self._stop(
                node.place,
                f"more than {NODES_MAX} values, aliases (*name) expanded",
                "write less, or write the values out instead of nesting aliases",
            )
        if node.depth > DEPTH_MAX + 1:
            raise self._stop(node.place, f"nested deeper than {DEPTH_MAX} levels", "flatten it")

    def _note_tag(self, event: Any, place: Place) -> None:
        if event.ctag is not None:
            tag = visible(str(event.ctag), 60)
            self._problem(place, f"tags are not supported ({tag})", "remove the tag")

    def _syntax(self, error: MarkedYAMLError) -> Unreadable:
        if found := _ODD_INDENT.search(self._text):
            line = self._text.count("\n", 0, found.start(1)) + 1
            column = found.start(1) - found.start() + 1
            message = f"the line is indented with {code_point(found.group(1))}"
            return self._stop(Place(line, column), message, "indent with plain spaces")
        said = str(error.problem or error.context or "syntax error")
        mark = error.problem_mark or error.context_mark
        if "end of stream" in said and error.context_mark is not None:
            mark = error.context_mark
        place = _place(mark) if mark is not None else Place(1, 1)
        lines = self._text.split("\n")
        if place.line <= len(lines) and (found := _BRACKETED.search(lines[place.line - 1])):
            place = Place(place.line, found.start() + 1)
            quoted = visible(found.group(), 80)
            return self._stop(place, "a [ begins a list", f'quote it: "{quoted}"')
        for part, message, fix in _EXPLAINED:
            if part in said:
                return self._stop(place, message, fix)
        return self._stop(place, f"not YAML: {visible(said)}", "correct the line")

    def _problem(self, place: Place, message: str, fix: str) -> None:
        self._problems.append(Problem(self._file, place.line, place.column, "", message, fix))

    def _stop(self, place: Place, message: str, fix: str) -> Unreadable:
        return Unreadable(Problem(self._file, place.line, place.column, "", message, fix))


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)
