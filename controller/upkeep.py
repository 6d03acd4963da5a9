"""What is looked after with every scan beside the Boxfiles: our own files, claims, and strays.

It puts back what is plainly ours and says which names want a pass; the passes do the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set

from controller.home import keep_instance
from controller.inventory import Inventory
from controller.store import Store
from reconcilers import disk as disks
from reconcilers import launchrecord, procfs
from reconcilers.builds import engine
from reconcilers.confinement.cgroup import list_sandboxes
from reconcilers.guestfiles import helper, transfers
from reconcilers.host import Host
from specs.errors import BoxError
from specs.names import is_name

log = logging.getLogger("box")


class Upkeep:
    """Upkeep of one home. `wake` asks for a pass over a name."""

    def __init__(
        self, host: Host, store: Store, inventory: Inventory, wake: Callable[[str], None]
    ) -> None:
        self._host = host
        self._layout = host.layout
        self._store = store
        self._inventory = inventory
        self._wake = wake
        self._marked: dict[str, set[int]] = {}
        self._complaint = ""

    def marked_as(self, name: str) -> Set[int]:
        """PIDs that carried this sandbox's name in the last scan."""
        return self._marked.get(name, set())

    def at_start(self) -> None:
        """Take up what an earlier controller left: records, claims, half-done work."""
        self._store.remove_leftovers()
        disks.sweep(self._layout.all_disks)
        self._host.images.sweep()
        self._sweep_transfers()
        engine.sweep(self._host)
        for garbled in self._inventory.load():
            log.warning(
                "%s cannot be read (%s); set aside, rebuilt from the host",
                garbled.path,
                garbled.why,
            )
        self._claims_from_records()

    def _sweep_transfers(self) -> None:
        """A helper machine that still runs has a disk open that the next VM would share with it."""
        helper.sweep(self._host)
        transfers.sweep(self._layout.transfers)

    async def at_scan(self) -> None:
        """Everything that a scan looks after. No other scan may run meanwhile: a sandbox that it
        found would be unknown here. Raises OSError, HostError.
        """
        self._mend_files()
        self._mend_claims()
        self._host.images.board.keep_only(self._inventory.entries)
        transfers.sweep(self._layout.transfers)
        # Only when everything that runs is known does a network of nobody belong to nobody.
        if self._find_strays() and not self._inventory.vanishing.reason:
            await self._remove_stray_networks()

    def _claims_from_records(self) -> None:
        """Claims that the registry lost are entered again from our records and from live VMMs."""
        claims = self._host.claims()
        for name, entry in self._inventory.entries.items():
            record = launchrecord.read(self._layout.launch_record(name))
            alive = record is not None and procfs.alive(record.pid, record.start_time) is not None
            uid = record.uid if record is not None and alive else entry.record.uid
            strict = entry.record.spec is not None and entry.record.spec.isolation == "strict"
            if uid is None or name in claims or not strict:
                continue
            try:
                self._host.adopt_claim(name, uid)
            except BoxError as error:  # it gets another UID, and with it another VMM
                log.warning("%s cannot have the UID %d any more: %s", name, uid, error)

    def _mend_files(self) -> None:
        """Records and reports that somebody deleted or changed are written again."""
        keep_instance(self._layout)
        for name, entry in self._inventory.entries.items():
            if self._store.intact(name):
                continue
            if entry.record.spec is not None and self._store.save(entry.record):
                self._inventory.event(entry, "mended", "its state file was changed and is back")
            self._wake(name)

    def _mend_claims(self) -> None:
        """Claims the host-wide registry lost go back in before anybody else can be given them."""
        try:
            restored = self._host.restore_claims()
        except BoxError as error:
            log.warning("claims on UIDs cannot be checked: %s", error)
            return
        for name in restored:
            entry = self._inventory.entries.get(name)
            if entry is not None:
                self._inventory.event(entry, "mended", "its claim on its UID was gone and is back")

    async def _remove_stray_networks(self) -> None:
        """What carries our instance's tag and belongs to no sandbox that exists."""
        known = list(self._inventory.entries)
        networks, instance = self._host.networks, self._layout.instance
        try:
            removed, kept = await asyncio.to_thread(networks.remove_strays, instance, known)
        except (BoxError, OSError) as error:
            removed, kept = [], [str(error)]
        if removed:
            log.warning("removed networks of no sandbox: %s", ", ".join(removed))
        complaint = "; ".join(kept)
        if complaint and complaint != self._complaint:  # once, not with every scan
            log.error("networks of no sandbox cannot be removed: %s", complaint)
        self._complaint = complaint

    def _find_strays(self) -> bool:
        """Take up whatever runs under our name; False when that cannot be told."""
        binary = self._host.facts.binary
        if binary is None:
            return False
        facts = binary.stat()
        instance = self._layout.instance
        self._marked = procfs.marked_processes(instance, (facts.st_dev, facts.st_ino))
        known = self._inventory.entries
        folders = list(self._layout.all_disks.iterdir())
        # A copy that somebody keeps in disks/ says another name than its folder's, and stays.
        owned = {path.name for path in folders if disks.belongs_to(path) == path.name}
        for name in {*self._marked, *list_sandboxes(instance), *owned} - known.keys():
            # No record knows this name. The prune guard outranks its removal.
            if is_name(name) and not self._inventory.vanishing.reason:
                self._inventory.take_orphan(name)
                self._wake(name)
        for name, pids in self._marked.items():
            entry = known.get(name)
            live = entry.live.record.pid if entry is not None and entry.live is not None else 0
            if pids - {live}:
                self._wake(name)
        return True
