"""What a fork changed, told, and brought into its parent: done by the running controller.

It alone knows that no VM has the disks meanwhile. It must not look into the archive of the changes:
that is the business of whoever asked, and of the machine that gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agent.merged import NOTHING, Merged
from controller.diskuse import DiskUse, require_walls
from controller.entry import Entry
from controller.inventory import Inventory
from controller.merging import Merging
from reconcilers import snapshots
from reconcilers.guestfiles import forks, transfers
from reconcilers.host import Host
from specs.boxfile import Boxfile
from specs.errors import Conflict, HostError, NoSandbox


@dataclass(frozen=True)
class Outcome:
    """`result`: told, nothing, conflicts (nothing was changed), checked (a dry run without any) or
    applied. `kept` is the snapshot of what the parent had.
    """

    of: str
    result: str
    merged: Merged = NOTHING
    kept: str = ""


class Forks:
    """Forks of one home."""

    def __init__(self, host: Host, inventory: Inventory, use: DiskUse, merging: Merging) -> None:
        self._merging = merging
        self._host = host
        self._inventory = inventory
        self._use = use

    async def diff(self, name: str, transfer: str) -> Outcome:
        """Write what the fork `name` changed to the file of `transfer`, without what is in files.

        Raises what `DiskUse.held` and `forks.compare` raise, RefusedByPolicy, UsageError for no
        such transfer.
        """
        with transfers.existing(self._host.layout.transfers, transfer) as archive:
            async with self._use.held(name) as entry, self._failing():
                require_walls(entry, self._inventory)
                of = await self._parent_of(name)
                count = await forks.compare(self._host, _spec(entry), archive, with_data=False)
        return Outcome(of, "told" if count else "nothing")

    async def apply(self, name: str, transfer: str, *, theirs: bool, dry_run: bool) -> Outcome:
        """Bring what the fork `name` changed into its parent: all of it or nothing. Raises as
        `diff`, and NoSandbox when there is no parent any more.
        """
        with transfers.existing(self._host.layout.transfers, transfer) as archive:
            async with self._use.held(name) as entry:
                require_walls(entry, self._inventory)
                of = await self._parent_of(name)
                try:
                    async with self._use.held(of) as parent, self._failing():
                        require_walls(parent, self._inventory)
                        if not dry_run:
                            await self._make_room(entry, parent)
                        fork = _spec(entry)
                        outcome = await self._apply(fork, parent, archive, theirs, dry_run)
                except NoSandbox as error:
                    raise NoSandbox(
                        f"{of}, which {name} is a fork of, is not there any more",
                        fix=f"box data export {name} DIR takes out all that {name} has",
                    ) from error
        return outcome

    async def _apply(
        self, fork: Boxfile, parent: Entry, archive: int, theirs: bool, dry_run: bool
    ) -> Outcome:
        of = parent.record.name
        if not await forks.compare(self._host, fork, archive, with_data=True):
            return Outcome(of, "nothing")
        applied = await forks.merge(
            self._host, _spec(parent), fork.name, archive, theirs=theirs, dry_run=dry_run
        )
        merged = applied.merged
        if merged.total and not theirs:
            return Outcome(of, "conflicts", merged)
        if dry_run:
            return Outcome(of, "checked", merged)
        if not applied.kept:
            return Outcome(of, "nothing", merged)
        told = f"the changes of {fork.name}; what was there is the snapshot {applied.kept}"
        self._inventory.event(parent, "applied", told)
        return Outcome(of, "applied", merged, applied.kept)

    async def _make_room(self, *entries: Entry) -> None:
        """Each gets a layer more."""
        for entry in entries:
            folder = self._host.layout.disks(entry.record.name)
            if await asyncio.to_thread(snapshots.is_full, folder):
                await self._merging.less(entry)

    @asynccontextmanager
    async def _failing(self) -> AsyncIterator[None]:
        """A host that lacks room, say, is no fault of ours."""
        try:
            yield
        except OSError as error:
            place = self._host.layout.all_disks
            raise HostError(
                f"nothing was done: {error.strerror or error}",
                where=str(error.filename or place),
                fix=f"df -h {place} {self._host.layout.transfers}",
            ) from error

    async def _parent_of(self, name: str) -> str:
        folder = self._host.layout.disks(name)
        try:
            found = await asyncio.to_thread(snapshots.read, folder)
        except HostError as error:
            if folder.exists():
                raise
            raise Conflict(f"{name} has no /data yet", fix="start it once") from error
        return forks.origin_of(found).of


def _spec(entry: Entry) -> Boxfile:
    spec = entry.record.spec
    assert spec is not None  # `DiskUse.entry` gives no other
    return spec
