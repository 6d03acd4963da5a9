"""`box build` and `box images`: a sandbox's image made while one watches, and what lies around.

The controller does the work; whoever watches may leave. A list is read from the files, also without
a controller.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from controller.cli import output
from controller.cli.client import call
from controller.cli.place import controller_runs, existing, needed, not_running
from controller.cli.progress import Watched, size
from controller.cli.view import view
from reconcilers.layout import Layout
from specs.errors import BoxError, UsageError
from specs.names import check_name

if TYPE_CHECKING:
    from reconcilers.images.stored import Stored

POLL_SECONDS = 0.1
TAKEN_UP_SECONDS = 5.0


class BuildFailed(BoxError):
    """The image could not be made."""


def build(chosen: Namespace) -> int:
    layout, name = needed(), check_name(chosen.name)
    body = json.dumps({"pull": chosen.pull}).encode()
    _until_taken_up(layout, name)
    run = int(call(layout, "POST", f"/v1/sandboxes/{name}/build", body)["run"])
    try:
        seen = _watch(layout, name, run)
    except KeyboardInterrupt:
        output.note(f"no longer watched; the controller goes on. To watch again: box build {name}")
        raise
    if seen["state"] == "failed":
        message = output.safe(seen["failure"], 4000)
        raise BuildFailed(message, where=name, fix=output.safe(seen["fix"], 1000))
    print(f"{name}: its image is ready: {output.safe(seen['digest'])[:12]}")
    return 0


def _until_taken_up(layout: Layout, name: str) -> None:
    """A Boxfile that was written a moment ago is meant, not the one before it."""
    from controller.cli.waiting import taken_up

    if not controller_runs(layout):
        raise not_running(layout)
    limit = time.monotonic() + TAKEN_UP_SECONDS
    while not taken_up(layout, view(layout, name)) and time.monotonic() < limit:
        time.sleep(POLL_SECONDS)


def _watch(layout: Layout, name: str, run: int) -> dict[str, Any]:
    """Show run number `run` until it ends. Should another one take its place, that is shown."""
    with Watched(name) as watched:
        watched.begin(run)
        while True:
            seen = call(layout, "GET", f"/v1/sandboxes/{name}/build?from={watched.next}")
            if seen["state"] == "none":
                raise BuildFailed("the controller began anew", where=name, fix=f"box build {name}")
            if seen["run"] != watched.run:
                watched.begin(seen["run"])
                continue
            watched.show(seen)
            if seen["state"] != "running":
                return seen
            time.sleep(POLL_SECONDS)


def images(chosen: Namespace) -> int:
    if chosen.dry_run and not chosen.prune:
        raise UsageError("--dry-run goes with --prune", fix="box images --prune --dry-run")
    if chosen.prune:
        return _prune(chosen)
    layout = existing()
    found = _stored(layout) if layout is not None else []
    if chosen.form != "table":
        output.print_data({"images": found}, chosen.form)
    elif not found:
        print("no image is here yet; a sandbox that starts has its own made")
    else:
        _table(found)
    return 0


def _stored(layout: Layout) -> list[dict[str, Any]]:
    from controller.cli.view import views
    from reconcilers.images.store import Images
    from reconcilers.images.stored import stored

    specs = {one.name: one.record.spec if one.record else None for one in views(layout)}
    found: tuple[Stored, ...] = stored(Images(layout.images), layout, specs)
    return [asdict(each) for each in found]


def _prune(chosen: Namespace) -> int:
    body = json.dumps({"dry_run": chosen.dry_run}).encode()
    found = call(needed(), "POST", "/v1/images", body, 600.0)["removed"]
    if chosen.form != "table":
        output.print_data({"removed": found, "dry_run": chosen.dry_run}, chosen.form)
        return 0
    if found:
        _table(found)
    total = size(sum(int(each["bytes"]) for each in found))
    count = " and ".join(filter(None, (_count(found, "image"), _count(found, "step"))))
    done = f"would be removed: {count}, {total}" if chosen.dry_run else f"removed {count}: {total}"
    print(done if found else "every image is used by a sandbox, and so is every finished step")
    return 0


def _count(found: list[dict[str, Any]], kind: str) -> str:
    count = sum(each["kind"] == kind for each in found)
    return output.count(count, kind) if count else ""


def _table(found: list[dict[str, Any]]) -> None:
    rows = [
        [
            ", ".join(each["names"]) or "-",
            each["kind"],
            str(each["digest"])[:12],
            size(int(each["bytes"])),
            ", ".join(each["used_by"]) or "-",
        ]
        for each in found
    ]
    output.print_table(["NAME", "KIND", "DIGEST", "SIZE", "USED BY"], rows)
