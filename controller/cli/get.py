"""`box get`: one line per sandbox, or everything as data."""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from collections.abc import Sequence

from controller.cli import output
from controller.cli.place import existing, home, say_when_down
from controller.cli.view import View, misnamed, view, views
from reconcilers.layout import Layout
from specs.errors import NoSandbox, UsageError

HEAD = ("NAME", "READY", "BACKEND", "ISOLATION", "AGE", "DRIFT", "REASON")
WIDE = ("STATE", "GENERATION", "PID", "FILE", "MESSAGE")
WATCH_SECONDS = 0.3
READY_COLOURS = {"True": output.GREEN, "False": output.RED, "Unknown": output.YELLOW}

NEXT = """\
no sandboxes yet. To make one:
  box new agent                  writes agent.box.yaml here
  box apply -f agent.box.yaml    puts it into {folder}
  box controller                 makes it true (in another terminal, or as a service)
"""


def get(chosen: Namespace) -> int:
    layout = existing()
    if chosen.watch:
        if chosen.form not in ("table", "wide"):
            raise UsageError(f"--watch does not go with -o {chosen.form}")
        return _watch(layout, chosen)
    found = _chosen(layout, chosen.name)
    if layout is not None and not chosen.name:
        _say_misnamed(layout)
    if not found and chosen.form in ("table", "wide"):
        folder = layout.boxes if layout else home() / "boxes"
        print(NEXT.format(folder=output.safe(folder)), end="")
        return 0
    if layout is not None:
        say_when_down(layout)
    _print(found, chosen)
    return 0


def _say_misnamed(layout: Layout) -> None:
    for path, why in misnamed(layout):
        output.note(f"{output.safe(layout.boxes / path)}: {output.safe(why, 400)}")


def _chosen(layout: Layout | None, names: list[str]) -> list[View]:
    if layout is None:
        if names:
            wanted = output.safe(names[0])
            raise NoSandbox(f"there is no sandbox {wanted}", fix="box get lists them")
        return []
    return [view(layout, name) for name in names] if names else views(layout)


def _print(found: list[View], chosen: Namespace) -> None:
    if chosen.form == "name":
        for one in found:
            print(one.name)
    elif chosen.form in ("table", "wide"):
        wide = chosen.form == "wide"
        _print_rows([_row(one, wide) for one in found], wide, head=True)
    elif len(chosen.name) == 1:
        output.print_data(found[0].data(), chosen.form)
    else:
        output.print_data({"sandboxes": [one.data() for one in found]}, chosen.form)


def _print_rows(
    rows: list[list[str]], wide: bool, *, head: bool, least: list[int] | None = None
) -> list[int]:
    """Print and return the widths, at `least` those given: rows that follow stay aligned."""
    names = HEAD + WIDE if wide else HEAD
    sizes = output.widths([names, *rows])
    if least is not None:
        sizes = [max(pair) for pair in zip(sizes, least, strict=True)]
    if head:
        print(output.line(names, sizes), flush=True)
    for row in rows:
        print(output.line(row, sizes, ["", READY_COLOURS.get(row[1], "")]), flush=True)
    return sizes


def _row(one: View, wide: bool) -> list[str]:
    cells: Sequence[object] = (
        one.name,
        one.status("Ready"),
        one.backend,
        one.isolation,
        one.age(),
        one.drift(),
        one.reason(),
    )
    if wide:
        report = one.report
        deciding = one.deciding()
        state = (report.state if report else "") or "-"
        generation = report.generation if report else "-"
        pid = report.vmm.get("pid", "-") if report else "-"
        message = one.garbled or one.trouble or (deciding.message if deciding else "") or "-"
        message = message.replace("\n", " | ")
        cells = (*cells, state, generation, pid, one.file or "(missing)", message)
    return [output.safe(cell) for cell in cells]


def _watch(layout: Layout | None, chosen: Namespace) -> int:
    """Rows that differ from the last time they were printed, until interrupted."""
    wide = chosen.form == "wide"
    printed: dict[str, list[str]] = {}
    # The first rows set the widths: a change is often longer than what it changes.
    sizes = [len(name) + 4 for name in (HEAD + WIDE if wide else HEAD)]
    first = True
    while True:
        layout = layout or existing()
        rows = {one.name: _row(one, wide) for one in _present(layout, chosen.name)}
        gone = [
            [name, "deleted", *["-"] * (len(row) - 2)]
            for name, row in printed.items()
            if name not in rows
        ]
        changed = [row for name, row in rows.items() if _lasting(row) != printed.get(name)]
        if first or changed or gone:
            sizes = _print_rows(changed + gone, wide, head=first, least=sizes)
            first = False
        printed = {name: _lasting(row) for name, row in rows.items()}
        time.sleep(WATCH_SECONDS)


def _lasting(row: list[str]) -> list[str]:
    """The row without its age, which changes by itself."""
    return [cell for index, cell in enumerate(row) if HEAD[index : index + 1] != ("AGE",)]


def _present(layout: Layout | None, names: list[str]) -> list[View]:
    found: list[View] = []
    for one in [[name] for name in names] or [[]]:
        with contextlib.suppress(NoSandbox):
            found += _chosen(layout, one)
    return found
