"""What a pass does to whole disks beside making and growing them: branching and setting aside."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from reconcilers import disk as disks
from reconcilers import snapshots
from reconcilers.layout import Layout
from specs.errors import HostError, NoSandbox

Held = Callable[[str], AbstractAsyncContextManager[object]]
"""Holds another sandbox, by its name, whose disk no VM and no pass has meanwhile."""


async def fork(layout: Layout, name: str, parent: str, size_mib: int, held: Held) -> None:
    """Make the disk of `name` as a branch of what `parent` holds now. Raises BoxError, OSError."""
    if parent == name:
        raise HostError("fork_of names itself", fix="name the sandbox that it begins with")
    try:
        async with held(parent):
            source, target = layout.disks(parent), layout.disks(name)
            await asyncio.to_thread(snapshots.fork, source, target, size_mib, snapshots.now())
    except NoSandbox as error:
        # Not for good: its Boxfile may come, or come back.
        raise HostError(f"fork_of: {error.message}", fix=error.fix) from error


def set_aside(layout: Layout, name: str) -> Path:
    """Keep the disk of a deleted sandbox; returns where it is now. Raises OSError."""
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    return disks.set_aside(layout.disks(name), layout.set_aside, moment)
