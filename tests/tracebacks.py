"""A program of ours must never show a Python traceback; when one does, its text is the finding."""

from __future__ import annotations

import re

BEGIN = "Traceback (most recent call last):"
SHOWN = 3  # different ones
TEXT_MAX = 6000  # characters of one
# Frames, the lines of source and marks below them, and the two sentences between chained ones.
INNER = re.compile(r"\s|During handling of the above|The above exception was|$")


def tracebacks(text: str) -> list[str]:
    """Each different traceback in `text`, with the line before it, which often says of what.

    Chained ones are one. The word "Traceback" in any other line counts, too.
    """
    lines = text.splitlines()
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        if "Traceback" not in lines[at]:
            at += 1
            continue
        begin, at = at, _end(lines, at)
        key = "\n".join(lines[begin:at])
        found.setdefault(key, "\n".join(lines[max(0, begin - 1) : at]))
    return list(found.values())


def _end(lines: list[str], at: int) -> int:
    """The line behind the last one of the traceback, or of the chain, that begins at `at`."""
    while at < len(lines) and "Traceback" in lines[at]:
        alone = BEGIN not in lines[at]
        at += 1
        if alone:
            break
        while at < len(lines) and INNER.match(lines[at]):
            at += 1
        at += 1  # the exception itself
        further = at
        while further < len(lines) and INNER.match(lines[further]):
            further += 1
        if further < len(lines) and further > at and BEGIN in lines[further]:
            at = further
    return min(at, len(lines))


def no_traceback(text: str | bytes, of: str = "") -> None:
    """Raises AssertionError that shows the tracebacks in what a program wrote; `of` says where."""
    shown = text if isinstance(text, str) else text.decode(errors="replace")
    found = tracebacks(shown)
    if not found:
        return
    first = "\n\n".join(one[-TEXT_MAX:] for one in found[:SHOWN])
    said = f"{len(found)} different tracebacks {of}".rstrip()
    raise AssertionError(f"{said}:\n{first}")
