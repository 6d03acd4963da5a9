"""Snapshot, restore and reset, done by the running controller to the disk of a stopped sandbox.

The name is held meanwhile, so that no pass starts a VM on a disk that is being changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from controller.diskuse import DiskUse
from controller.forks import Forks, Outcome
from controller.inventory import Inventory
from controller.merging import Merging
from controller.transfers import Transfers
from reconcilers import snapshots
from reconcilers.guestfiles.helper import Action
from reconcilers.inthread import to_end
from reconcilers.layout import Layout
from reconcilers.snapshots import Listed
from specs.errors import CommandError, HostError

T = TypeVar("T")


class DiskVerbs:
    """The disks of one home (`controller.service.Disks`)."""

    def __init__(
        self,
        layout: Layout,
        inventory: Inventory,
        use: DiskUse,
        transfers: Transfers,
        forks: Forks,
        merging: Merging,
    ) -> None:
        self._forks = forks
        self._merging = merging
        self._transfers = transfers
        self._layout = layout
        self._inventory = inventory
        self._use = use

    async def snapshots(self, name: str) -> Sequence[Listed]:
        self._use.entry(name)
        return await asyncio.to_thread(snapshots.listed, self._layout.disks(name))

    async def snapshot(self, name: str, label: str) -> str:
        async with self._use.held(name) as entry:
            if await self._do(name, snapshots.is_full):
                await self._merging.less(entry)
            label = await self._do(
                name, lambda folder: snapshots.take(folder, label, snapshots.now())
            )
            self._inventory.event(entry, "snapshot", f"{label} taken")
        return label

    async def restore(self, name: str, label: str, *, discard: bool) -> str:
        if discard:
            self._may_erase(name)
        async with self._use.held(name) as entry:
            kept = await self._do(
                name,
                lambda folder: snapshots.restore(folder, label, snapshots.now(), discard=discard),
            )
            self._inventory.event(entry, "restored", f"/data is {label} again{_former(kept)}")
        return kept

    async def reset(self, name: str, *, discard: bool) -> str:
        if discard:
            self._may_erase(name)
        async with self._use.held(name) as entry:
            box = entry.record.spec
            assert box is not None
            size = box.data.size_mib
            now = snapshots.now()
            kept = await self._do(
                name, lambda folder: snapshots.reset(folder, size, now, discard=discard)
            )
            self._inventory.event(entry, "reset", f"/data is empty{_former(kept)}")
        return kept

    async def forget(self, name: str, label: str) -> int:
        self._may_erase(name)
        async with self._use.held(name) as entry:
            await self._do(name, lambda folder: snapshots.forget(folder, label))
            self._inventory.event(entry, "snapshot", f"{label} deleted")
            return await self._merging.less(entry)

    async def fork_diff(self, name: str, transfer: str) -> Outcome:
        return await self._forks.diff(name, transfer)

    async def fork_apply(self, name: str, transfer: str, *, theirs: bool, dry_run: bool) -> Outcome:
        return await self._forks.apply(name, transfer, theirs=theirs, dry_run=dry_run)

    async def transfer(self, name: str, action: str, transfer: str) -> None:
        await self._transfers.run(name, Action(action), transfer)

    def _may_erase(self, name: str) -> None:
        self._use.entry(name)
        self._inventory.may_erase(name, "keep it: leave out --discard, and delete no snapshot")

    async def _do(self, name: str, act: Callable[[Path], T]) -> T:
        """Also when whoever asked has gone: the name is not let go before it is done."""
        folder = self._layout.disks(name)
        try:
            return await to_end(lambda: act(folder))
        except CommandError as error:  # mke2fs, which says why on its last line
            why = error.last_lines.strip().rpartition("\n")[2] or error.message
            raise HostError(
                f"nothing was done: {error.argv[0]}: {why}", fix=f"df -h {folder.parent}"
            ) from error
        except OSError as error:
            raise HostError(
                f"nothing was done: {error.strerror or error}",
                where=str(error.filename or folder),
                fix=f"df -h {folder.parent}",
            ) from error


def _former(kept: str) -> str:
    return f"; what was there is the snapshot {kept}" if kept else "; what was there is erased"
