"""What the other sandboxes of this home mean for the mounts of one: a guest that can write a
directory decides what any path through it leads to.

Built anew for every decision, from the folder's and the policy's newest state. It must not open
anything for keeping.
"""

from __future__ import annotations

import asyncio

from controller.entry import Entry
from controller.inventory import Inventory
from reconcilers import mounts
from reconcilers.confinement import ordinary
from reconcilers.host import Host
from reconcilers.mountplaces import forbidden_places, program_places
from reconcilers.mounts import Directory, Refused, Rules, Writable
from specs.boxfile import Boxfile
from specs.ceiling import Ceiling
from specs.errors import HostError


def rules_for(host: Host, inventory: Inventory, name: str) -> Rules:
    """The rules for the mounts of sandbox `name`. Raises HostError when policy.toml is unreadable:
    what it allows is then not known."""
    ceiling = inventory.ceiling
    if not isinstance(ceiling, Ceiling):
        raise HostError(f"policy.toml cannot be read: {ceiling}")
    return Rules(
        forbidden=forbidden_places(host.layout, host.config, host.identities.folder),
        unwritable=program_places(),
        writable=_written_by_others(inventory, name),
        prefixes=ceiling.mount_prefixes,
        ordinary=ordinary.current() is not None,
    )


async def refresh(host: Host, inventory: Inventory, entry: Entry, box: Boxfile | None) -> None:
    """Note where the mounts of `box` lead now, and those that the VM which runs was started with.

    Raises HostError when it cannot be judged; nothing of them is known then.
    """
    former, started = entry.refused_mounts, entry.started
    entry.directories, entry.refused_mounts = (), ()
    entry.served, entry.lost = (), ()
    if box is None or box.state != "running":
        return

    async def found(text: Boxfile) -> tuple[tuple[Directory, ...], tuple[Refused, ...]]:
        return await asyncio.to_thread(look, host, inventory, box.name, text)

    if box.mounts:
        entry.directories, entry.refused_mounts = await found(box)
    if started is None or started.mounts == box.mounts:
        entry.served = entry.directories
    elif started.mounts:
        entry.served, entry.lost = await found(started)
    if entry.refused_mounts and entry.refused_mounts != former:
        inventory.event(entry, "refused", "; ".join(map(str, entry.refused_mounts)))


def look(
    host: Host, inventory: Inventory, name: str, box: Boxfile
) -> tuple[tuple[Directory, ...], tuple[Refused, ...]]:
    """Every mount of `box`, resolved or refused (blocking). Raises HostError."""
    return mounts.look(box, rules_for(host, inventory, name))


def _written_by_others(inventory: Inventory, name: str) -> tuple[Writable, ...]:
    found: list[Writable] = []
    mine = inventory.entries.get(name)
    claim = (mine.record.created if mine else "", name)
    # a copy in one step: this runs in a thread, and the folder may change meanwhile
    for other, entry in list(inventory.entries.items()):
        if other == name:
            continue
        first = (entry.record.created, other) < claim
        spec, started = entry.record.spec, entry.started
        if spec is not None:
            found += mounts.writable_of(spec, first=first)
        if started is not None and started is not spec:
            # A VM that runs on with what an older text gave it writes there still.
            found += mounts.writable_of(started, first=first)
        if entry.live is not None:
            # What its helpers were given they have open, wherever the path to it leads by now.
            found += (
                Writable(other, (helper.directory,), first)
                for helper in entry.live.record.helpers
                if helper.writable
            )
    return tuple(found)
