"""The API's routes to images: building one, watching it, listing and pruning them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

from controller.apireply import Handler, Reply
from controller.apirequest import fields, flag
from controller.httpconn import Request
from controller.service import Service
from reconcilers.images.progress import Seen
from reconcilers.images.stored import Stored
from specs.errors import UsageError

_NUMBER = re.compile(r"[0-9]{1,15}")  # what JSON's numbers hold


async def _build(service: Service, request: Request, name: str) -> Reply:
    pull = flag(fields(request, "pull"), "pull")
    return Reply({"name": name, "run": await service.images.build(name, pull=pull)}, 202)


async def _progress(service: Service, request: Request, name: str) -> Reply:
    query = parse_qs(request.path.partition("?")[2], keep_blank_values=True)
    values = query.pop("from", ["0"])
    if query or len(values) != 1 or not _NUMBER.fullmatch(values[0]):
        raise UsageError("from which line?", fix="GET /v1/sandboxes/NAME/build?from=0")
    seen = service.images.progress(name, int(values[0]))
    return Reply({"name": name, **(_shown(seen) if seen is not None else {"state": "none"})})


def _shown(seen: Seen) -> dict[str, Any]:
    lines = [line.decode("utf-8", "replace") for line in seen.lines]
    return {**asdict(seen), "lines": lines}


async def _list(service: Service, request: Request, name: str) -> Reply:
    return Reply({"images": _images(await service.images.images())})


async def _prune(service: Service, request: Request, name: str) -> Reply:
    dry_run = flag(fields(request, "dry_run"), "dry_run")
    gone = await service.images.prune(dry_run=dry_run)
    return Reply({"dry_run": dry_run, "removed": _images(gone)})


def _images(found: Iterable[Stored]) -> list[dict[str, Any]]:
    return [asdict(each) for each in found]


ROUTES: Mapping[tuple[str, str], Mapping[str, Handler]] = {
    ("sandboxes", "build"): {"GET": _progress, "POST": _build},
    ("images", ""): {"GET": _list, "POST": _prune},
}
