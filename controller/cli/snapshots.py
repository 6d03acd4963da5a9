"""`box snapshot`, `snapshots`, `restore` and `reset`: what is done to a stopped sandbox's disk.

The controller does it, because it alone knows that no VM is being started meanwhile. A list is read
from the files, also without a controller.
"""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from controller.cli import output
from controller.cli.client import ANSWER_SECONDS, WORK_SECONDS, call
from controller.cli.place import needed
from controller.cli.view import view
from reconcilers.layout import Layout
from specs.names import check_name

MIB = 1 << 20


def snapshot(chosen: Namespace) -> int:
    layout, name = _chosen(chosen)
    # Layers are merged first where no other one fits.
    answer = _post(layout, name, "snapshots", WORK_SECONDS, label=chosen.label or "")
    print(f"{name}: snapshot {answer['label']} taken")
    return 0


def snapshots(chosen: Namespace) -> int:
    from reconcilers.snapshots import listed

    layout, name = _chosen(chosen)
    if chosen.delete is not None:
        path = f"/v1/sandboxes/{name}/snapshots?label={quote(chosen.delete)}"
        merged = call(layout, "DELETE", path, seconds=WORK_SECONDS)["merged"]
        more = f"; {output.count(merged, 'layer')} merged into those beneath" if merged else ""
        print(f"{name}: snapshot {output.safe(chosen.delete)} deleted{more}")
        return 0
    view(layout, name)  # raises NoSandbox
    found = listed(layout.disks(name))
    if chosen.form != "table":
        output.print_data({"name": name, "snapshots": list(map(asdict, found))}, chosen.form)
    elif not found:
        print(f"{name} has no snapshot; with its VM stopped, box snapshot {name} takes one")
    else:
        rows = [
            [each.label, output.age(each.taken), _mib(each.disk_bytes), _mib(each.frees_bytes)]
            for each in found
        ]
        output.print_table(["LABEL", "AGE", "DISK", "FREES"], rows)
    return 0


def _mib(size: int) -> str:
    return f"{size / MIB:.0f} MiB" if size >= 10 * MIB or not size else f"{size / MIB:.1f} MiB"


def restore(chosen: Namespace) -> int:
    layout, name = _chosen(chosen)
    answer = _post(layout, name, "restore", label=chosen.label, discard=chosen.discard)
    print(f"{name}: /data is that of {answer['label']} again{_former(answer)}")
    return 0


def reset(chosen: Namespace) -> int:
    layout, name = _chosen(chosen)
    print(f"{name}: /data is empty{_former(_post(layout, name, 'reset', discard=chosen.discard))}")
    return 0


def _chosen(chosen: Namespace) -> tuple[Layout, str]:
    return needed(), check_name(chosen.name)


def _post(
    layout: Layout, name: str, what: str, seconds: float = ANSWER_SECONDS, **body: object
) -> dict[str, Any]:
    data = json.dumps(body).encode()
    return call(layout, "POST", f"/v1/sandboxes/{name}/{what}", data, seconds)


def _former(answer: dict[str, Any]) -> str:
    kept = answer.get("kept")
    return f"; what was there is the snapshot {kept}" if kept else "; what was there is erased"
