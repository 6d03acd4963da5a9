"""The API's routes to the disks of sandboxes: snapshots, restore, reset, transfers, forks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from urllib.parse import parse_qs

from controller.apireply import Handler, Reply
from controller.apirequest import fields, flag, text
from controller.httpconn import Request
from controller.service import Service
from specs.errors import UsageError
from specs.pathtext import path_field

ACTIONS = ("export", "import")
WHILE_THERE = frozenset({"data", "fork"})
"""What ends when its client leaves: a disk would be held for long, and for nobody."""


async def _list(service: Service, request: Request, name: str) -> Reply:
    found = await service.disks.snapshots(name)
    return Reply({"name": name, "snapshots": [asdict(each) for each in found]})


async def _take(service: Service, request: Request, name: str) -> Reply:
    label = await service.disks.snapshot(name, text(fields(request, "label"), "label"))
    return Reply({"name": name, "label": label, "result": "taken"}, 201)


async def _forget(service: Service, request: Request, name: str) -> Reply:
    query = parse_qs(request.path.partition("?")[2], keep_blank_values=True)
    if list(query) != ["label"] or len(query["label"]) != 1:
        raise UsageError("which snapshot?", fix="DELETE /v1/sandboxes/NAME/snapshots?label=LABEL")
    label = query["label"][0]
    merged = await service.disks.forget(name, label)
    return Reply({"name": name, "label": label, "merged": merged, "result": "deleted"})


async def _restore(service: Service, request: Request, name: str) -> Reply:
    body = fields(request, "label", "discard")
    label = text(body, "label")
    kept = await service.disks.restore(name, label, discard=flag(body, "discard"))
    return Reply({"name": name, "label": label, "kept": kept, "result": "restored"})


async def _reset(service: Service, request: Request, name: str) -> Reply:
    discard = flag(fields(request, "discard"), "discard")
    kept = await service.disks.reset(name, discard=discard)
    return Reply({"name": name, "kept": kept, "result": "reset"})


async def _data(service: Service, request: Request, name: str) -> Reply:
    body = fields(request, "action", "transfer")
    action, transfer = text(body, "action"), text(body, "transfer")
    if action not in ACTIONS:
        raise UsageError(
            f"action: one of {', '.join(ACTIONS)} is expected",
            fix='send {"action": "export", "transfer": ID}, or "import" (docs/api.md)',
        )
    await service.disks.transfer(name, action, transfer)
    return Reply({"name": name, "result": f"{action}ed"})


async def _fork(service: Service, request: Request, name: str) -> Reply:
    body = fields(request, "action", "transfer", "theirs", "dry_run")
    action, transfer = text(body, "action"), text(body, "transfer")
    theirs, dry_run = flag(body, "theirs"), flag(body, "dry_run")
    if action == "diff" and not theirs and not dry_run:
        found = await service.disks.fork_diff(name, transfer)
    elif action == "apply":
        found = await service.disks.fork_apply(name, transfer, theirs=theirs, dry_run=dry_run)
    else:
        raise UsageError(
            "action: diff, alone, or apply is expected",
            fix='send {"action": "diff", "transfer": ID}, or "apply" with theirs and dry_run '
            "(docs/api.md)",
        )
    merged = found.merged
    return Reply(
        {
            "name": name,
            "of": found.of,
            "result": found.result,
            "changes": merged.taken,
            "conflicts": [
                {"fork": each.fork, "parent": each.parent, **path_field(each.path)}
                for each in merged.conflicts
            ],
            "conflict_count": merged.total,
            "kept": found.kept,
        }
    )


ROUTES: Mapping[tuple[str, str], Mapping[str, Handler]] = {
    ("sandboxes", "snapshots"): {"GET": _list, "POST": _take, "DELETE": _forget},
    ("sandboxes", "restore"): {"POST": _restore},
    ("sandboxes", "reset"): {"POST": _reset},
    ("sandboxes", "data"): {"POST": _data},
    ("sandboxes", "fork"): {"POST": _fork},
}
