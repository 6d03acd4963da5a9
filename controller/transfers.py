"""Import and export, done by the running controller: nobody else may know when a disk is free.

The name is held while a helper machine has the disk; what is asked for meanwhile comes afterwards.
It must not look into an archive: that is the business of whoever gives or wants the directory.
"""

from __future__ import annotations

import os
from dataclasses import replace

from controller.diskuse import DiskUse, require_walls
from controller.entry import Entry
from controller.inventory import Inventory
from reconcilers import disk as disks
from reconcilers.facts import Disk
from reconcilers.guestfiles import helper, transfers
from reconcilers.guestfiles.helper import Action, Job
from reconcilers.host import Host
from reconcilers.inthread import to_end
from specs.errors import Conflict, HostError


class Transfers:
    """Transfers of one home."""

    def __init__(self, host: Host, inventory: Inventory, use: DiskUse) -> None:
        self._host = host
        self._inventory = inventory
        self._use = use

    async def run(self, name: str, action: Action, transfer: str) -> None:
        """Write /data of `name` to the file of `transfer`, or add what is in that file to it.

        Raises what `DiskUse.held` and `helper.run` raise, RefusedByPolicy, Conflict when it has no
        data, UsageError for no such transfer.
        """
        with transfers.existing(self._host.layout.transfers, transfer) as archive:
            async with self._use.held(name, f"its /data is being {action.value}ed") as entry:
                require_walls(entry, self._inventory)
                disk = await to_end(lambda: self._disk(entry, action))
                if not entry.record.has_disk:
                    self._inventory.save(name, replace(entry.record, has_disk=True))
                if action is Action.EXPORT:
                    os.ftruncate(archive, helper.archive_bytes(disk))
                box = entry.record.spec
                assert box is not None
                await helper.run(self._host, box, Job(action, archive))
                self._inventory.event(entry, action.value, f"its /data was {action.value}ed")

    def _disk(self, entry: Entry, action: Action) -> Disk:
        """The disk; for an import into a sandbox that never ran, a new one (blocking)."""
        name, spec = entry.record.name, entry.record.spec
        folder = self._host.layout.disks(name)
        disk = disks.observe(folder)
        if disk is None and entry.record.has_disk:
            raise HostError(
                f"the disk of {name} is lost", where=str(folder), fix=f"box describe {name}"
            )
        branched = spec is not None and spec.fork_of
        if disk is None and action is Action.IMPORT and spec is not None and not branched:
            disks.create(folder, spec.data.size_mib)
            disk = disks.observe(folder)
        if disk is None:
            other = "" if branched or action is Action.IMPORT else ", or import something"
            raise Conflict(f"{name} has no /data yet", fix=f"start it once{other}")
        return disk
