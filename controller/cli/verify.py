"""`box verify`: ask the controller to read the live VMM now, and print every reading."""

from __future__ import annotations

from argparse import Namespace

from controller.cli import output
from controller.cli.client import call
from controller.cli.describe import print_readings
from controller.cli.place import needed
from specs.names import check_name


def verify(chosen: Namespace) -> int:
    """0 only when there are readings and every one is as wanted."""
    layout = needed()
    name = check_name(chosen.name)
    readings = call(layout, "POST", f"/v1/sandboxes/{name}/verify")["readings"]
    wrong = [one for one in readings if not one.get("ok")]
    if chosen.form == "json":
        output.print_data(
            {"name": name, "ok": bool(readings) and not wrong, "readings": readings}, "json"
        )
    else:
        print_readings(readings, "")
        summary = f"{len(readings) - len(wrong)} of {len(readings)} readings are as they must be"
        print(output.paint(summary, output.RED if wrong or not readings else output.GREEN))
    return 1 if wrong or not readings else 0
