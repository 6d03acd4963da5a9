"""`box verify`: ask the controller to read the live VMM now; print every proof and its reading."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from controller.cli import output, proven
from controller.cli.client import call
from controller.cli.describe import reading_rows
from controller.cli.place import needed
from specs.names import check_name

EMULATED = "the CPU is emulated: no hardware stands between guest and QEMU (HardwareIsolated=False)"


def verify(chosen: Namespace) -> int:
    """0 only when there are readings and every one is as wanted."""
    layout = needed()
    name = check_name(chosen.name)
    readings = call(layout, "POST", f"/v1/sandboxes/{name}/verify")["readings"]
    wrong = [one for one in readings if not one.get("ok")]
    if chosen.form == "json":
        told = [
            one | {"proves": proven.statement(str(one.get("layer")), str(one.get("item")))}
            for one in readings
        ]
        output.print_data(
            {"name": name, "ok": bool(readings) and not wrong, "readings": told}, "json"
        )
    else:
        _print(readings)
        summary = f"{len(readings) - len(wrong)} of {len(readings)} readings are as they must be"
        print(output.paint(summary, output.RED if wrong or not readings else output.GREEN))
    return 1 if wrong or not readings else 0


def _print(readings: list[dict[str, Any]]) -> None:
    """Grouped by what is proved; columns are aligned over all groups."""
    rows = reading_rows(readings)
    head = ["", "LAYER", "ITEM", "FOUND", "READ FROM"]
    sizes = output.widths([head, *rows])
    print(output.line(head, sizes))
    done = 0
    for title, group in proven.groups(readings):
        print(output.paint(output.safe(title), output.BOLD))
        for row in rows[done : done + len(group)]:
            colour = output.GREEN if row[0] == "ok" else output.RED
            print(output.line(row, sizes, [colour]))
        done += len(group)
    emulated = [one for one in readings if "emulated" in str(one.get("got"))]
    print()
    if emulated:
        print(output.paint(EMULATED, output.YELLOW))
