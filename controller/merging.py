"""Fewer layers for a disk that is held: when a snapshot is deleted, and when no layer more fits."""

from __future__ import annotations

import logging

from controller.entry import Entry
from controller.inventory import Inventory
from reconcilers import merging
from reconcilers.host import Host
from specs.errors import BoxError

log = logging.getLogger(__name__)


class Merging:
    """The disks of one home."""

    def __init__(self, host: Host, inventory: Inventory) -> None:
        self._host = host
        self._inventory = inventory

    async def less(self, entry: Entry) -> int:
        """Merge what can be of the disk of `entry`, whose name is held; how many layers went.

        It serves no need of the moment, so a failure is only told.
        """
        name, box = entry.record.name, entry.record.spec
        if box is None:
            return 0
        try:
            gone = await merging.merge(self._host, box)
        except (BoxError, OSError) as error:
            log.warning("%s: layers of its disk could not be merged: %s", name, error)
            self._inventory.event(entry, "merged", f"layers could not be merged: {error}")
            return 0
        if gone:
            self._inventory.event(entry, "merged", f"{gone} layers into those beneath")
        return gone
