"""Read one YAML 1.2 document as plain data with positions, finding every mistake it can.

Duplicate keys, merge keys, keys that are not plain ASCII words: refused here, each with its place.
It must not know any field; `specs.validate` judges what the document says.
"""

from __future__ import annotations

from typing import Any

from specs.document import Document, Path, Place, Unreadable, decode, dotted, odd_key
from specs.errors import Problem
from specs.text import visible
from specs.yamlcompose import EMPTY_FIX, Composer, Node


def parse_yaml(data: bytes, file: str) -> tuple[Document | None, tuple[Problem, ...]]:
    """The document in `data` and its mistakes; no document when reading could not reach the end.

    Never raises for any bytes. With mistakes, the document holds what could be understood, so that
    the caller can look for more.
    """
    try:
        text = decode(data, file)
        root, problems = Composer(file, text).compose()
    except Unreadable as stop:
        return None, (stop.problem,)
    converter = _Converter(file)
    try:
        document = converter.convert(root)
    except Unreadable as stop:
        return None, (*problems, stop.problem)
    return document, (*problems, *converter.problems)


class _Converter:
    """Turns nodes into plain data. Recursion is bounded: no node is deeper than DEPTH_MAX."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems: list[Problem] = []
        self._document = Document({})

    def convert(self, root: Node) -> Document:
        if root.kind == "scalar" and root.content is None and not root.fault:
            raise Unreadable(
                Problem(self._file, *root.place, "", "the document is empty", EMPTY_FIX)
            )
        if root.kind != "map":
            message = "a Boxfile is a map of fields"
            raise Unreadable(Problem(self._file, *root.place, "", message, 'write "field: value"'))
        self._document.data.update(self._map(root, ()))
        return self._document

    def _value(self, node: Node, path: Path) -> Any:
        self._document.values[path] = node.place
        if node.kind == "map":
            return self._map(node, path)
        if node.kind == "list":
            return [self._value(child, (*path, i)) for i, child in enumerate(node.content)]
        if node.fault:
            self._problem(node.place, path, *node.fault)
        elif node.plain:
            self._document.texts[path] = node.text
        return node.content

    def _map(self, node: Node, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.content:
            key = self._key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            if first := self._document.keys.get(here):
                line = key_node.place.line
                message = f"written twice, on line {first.line} and on line {line}"
                self._problem(key_node.place, here, message, "keep one of the two")
                continue
            self._document.keys[here] = key_node.place
            result[key] = self._value(value_node, here)
        return result

    def _key(self, node: Node, path: Path) -> str | None:
        if node.kind != "scalar":
            self._problem(node.place, path, "a key cannot be a list or a map", "use a word")
            return None
        if node.plain and node.text == "<<":
            message = "merge keys (<<) are not supported"
            self._problem(node.place, path, message, "write the merged fields out")
            return None
        if node.fault or not isinstance(node.content, str):
            shown = visible(node.text, 60)
            message = f"the key {shown} is not text" if shown else "a key is missing before the :"
            self._problem(node.place, path, message, f'quote it: "{shown}"')
            return None
        if fault := odd_key(node.content):
            self._problem(
                node.place, (*path, node.content), fault, "type the key again in plain ASCII"
            )
            return None
        return node.content

    def _problem(self, place: Place, path: Path, message: str, fix: str) -> None:
        self.problems.append(Problem(self._file, *place, dotted(path), message, fix))
