"""What a human sees: aligned tables, ages, colours only where they help, notes on stderr.

Text that came from files, guests or VMMs passes `safe` on its way out, so that it can colour or
move nothing on a terminal. This module must not know what a sandbox is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from specs.plain import without_none
from specs.text import visible, visible_lines

GREEN, YELLOW, RED, BOLD = "32", "33", "31", "1"


def safe(value: object, limit: int = 200) -> str:
    """One line without anything a terminal would act on; tabs, as /proc has them, become spaces."""
    return visible(str(value).replace("\t", " "), limit)


def safe_lines(value: object, limit: int = 4000) -> str:
    return visible_lines(str(value), limit)


def colours(stream: TextIO) -> bool:
    """True for a terminal that may be coloured (see no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, code: str, stream: TextIO | None = None) -> str:
    """`text` in a colour when the stream shows colours, else unchanged."""
    return f"\x1b[{code}m{text}\x1b[0m" if code and colours(stream or sys.stdout) else text


def note(text: str) -> None:
    """A remark that must not end up in a pipe."""
    print(f"box: {safe_lines(text)}", file=sys.stderr)


def count(number: int, one: str, many: str = "") -> str:
    """`1 file`, `2 files`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def widths(rows: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def line(cells: Sequence[str], sizes: Sequence[int], codes: Sequence[str] = ()) -> str:
    """One row, columns two spaces apart; `codes` colours cells without changing the alignment."""
    padded = [cell.ljust(size) for cell, size in zip(cells, sizes, strict=True)]
    for index, code in enumerate(codes):
        padded[index] = padded[index].replace(cells[index], paint(cells[index], code), 1)
    return "  ".join(padded).rstrip()


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under upper-case headings, every cell made safe."""
    shown = [[safe(cell) for cell in row] for row in rows]
    sizes = widths([head, *shown])
    print(line(head, sizes))
    for row in shown:
        print(line(row, sizes))


def print_pairs(pairs: Iterable[tuple[str, object]], indent: str = "") -> None:
    """`label  value` lines, labels aligned; empty values are left out."""
    shown = [
        (safe(label), safe(value, 10_000)) for label, value in pairs if value not in ("", None)
    ]
    size = max((len(label) for label, _ in shown), default=0)
    for label, value in shown:
        print(f"{indent}{label.ljust(size)}  {value}".rstrip())


def print_data(value: Any, form: str) -> None:
    """`value` as json, yaml or toml on stdout."""
    if form == "json":
        import json

        print(json.dumps(value, indent=2))
    elif form == "yaml":
        from ruamel.yaml import YAML

        writer = YAML(typ="safe", pure=True)
        writer.default_flow_style = False
        writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        writer.dump(value, sys.stdout)
    else:
        import tomli_w

        print(tomli_w.dumps(without_none(value)), end="")


def moment(text: str) -> datetime | None:
    """An ISO-8601 time, or None when it is not one."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def age(text: str) -> str:
    """How long ago an ISO-8601 time was, short: 5s, 12m, 3h, 8d; `-` when unknown."""
    then = moment(text)
    return "-" if then is None else span((datetime.now(UTC) - then).total_seconds())


def span(seconds: float) -> str:
    left = max(0, int(seconds))
    if left < 120:
        return f"{left}s"
    if left < 2 * 3600:
        return f"{left // 60}m"
    if left < 2 * 86400:
        return f"{left // 3600}h"
    return f"{left // 86400}d"
