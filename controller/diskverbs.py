"""Snapshot, restore and reset, done by the running controller to the disk of a stopped sandbox.

The name is held meanwhile, so that no pass starts a VM on a disk that is being changed; whether one
has it open is read from the host, not remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from controller.clock import timestamp
from controller.entry import Entry
from controller.inventory import Inventory
from reconcilers import launchrecord, procfs, snapshots
from reconcilers.host import Host
from reconcilers.snapshots import Listed, Moment
from specs.errors import HostError, NoSandbox, NotUp, StillRunning

T = TypeVar("T")
PASS_SECONDS = 20.0
"""How long a pass that is going on may keep a verb waiting; a client waits for a minute."""


def _now() -> Moment:
    return Moment(timestamp(), datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S"))


class DiskVerbs:
    """The disks of one home (`controller.service.Disks`). `alone` holds a name, `wake` asks for a
    pass over it.
    """

    def __init__(
        self,
        host: Host,
        inventory: Inventory,
        alone: Callable[[str], AbstractAsyncContextManager[None]],
        wake: Callable[[str], None],
    ) -> None:
        self._host = host
        self._inventory = inventory
        self._alone = alone
        self._wake = wake

    async def snapshots(self, name: str) -> Sequence[Listed]:
        self._entry(name)
        return await asyncio.to_thread(snapshots.listed, self._host.layout.disks(name))

    async def snapshot(self, name: str, label: str) -> str:
        async with self._held(name) as entry:
            label = await self._do(name, lambda folder: snapshots.take(folder, label, _now()))
            self._inventory.event(entry, "snapshot", f"{label} taken")
        return label

    async def restore(self, name: str, label: str, *, discard: bool) -> str:
        if discard:
            self._may_erase(name)
        async with self._held(name) as entry:
            kept = await self._do(
                name, lambda folder: snapshots.restore(folder, label, _now(), discard=discard)
            )
            self._inventory.event(entry, "restored", f"/data is {label} again{_former(kept)}")
        return kept

    async def reset(self, name: str, *, discard: bool) -> str:
        if discard:
            self._may_erase(name)
        async with self._held(name) as entry:
            box = entry.record.spec
            assert box is not None
            size = box.data.size_mib
            kept = await self._do(
                name, lambda folder: snapshots.reset(folder, size, _now(), discard=discard)
            )
            self._inventory.event(entry, "reset", f"/data is empty{_former(kept)}")
        return kept

    async def forget(self, name: str, label: str) -> None:
        self._may_erase(name)
        async with self._held(name) as entry:
            await self._do(name, lambda folder: snapshots.forget(folder, label))
            self._inventory.event(entry, "snapshot", f"{label} deleted")

    def _may_erase(self, name: str) -> None:
        self._entry(name)
        self._inventory.may_erase(name, "keep it: leave out --discard, and delete no snapshot")

    def _entry(self, name: str) -> Entry:
        entry = self._inventory.entries.get(name)
        if entry is None or entry.record.spec is None or entry.removing:
            raise NoSandbox(
                f"there is no sandbox {name}", fix=f"box new {name}, or box get to list them"
            )
        return entry

    @asynccontextmanager
    async def _held(self, name: str) -> AsyncIterator[Entry]:
        """No pass and no VM has it while this is held; one is asked for afterwards."""
        self._refuse_running(name)  # at once: a pass over a VM that boots takes its time
        alone = self._alone(name)
        try:
            async with asyncio.timeout(PASS_SECONDS):
                await alone.__aenter__()
        except TimeoutError:
            raise NotUp(
                f"{name} is being started, stopped or mended", fix="try again in a moment"
            ) from None
        try:
            self._refuse_running(name)
            await asyncio.to_thread(self._refuse_strays, name)
            yield self._entry(name)
        finally:
            await alone.__aexit__(None, None, None)
            self._wake(name)

    def _refuse_running(self, name: str) -> None:
        entry = self._entry(name)
        record = launchrecord.read(self._host.layout.launch_record(name))
        lives = record is not None and procfs.alive(record.pid, record.start_time) is not None
        if lives or entry.live is not None:
            raise self._running(name)

    def _refuse_strays(self, name: str) -> None:
        """A VMM that no record describes has the disk open as well (blocking)."""
        names, binary = self._host.names(name), self._host.facts.binary
        group = self._host.cgroup(names)
        found = set(group.procs()) if group.exists() else set()
        if binary is not None:
            facts = binary.stat()
            known = procfs.marked_processes(names.instance, (facts.st_dev, facts.st_ino))
            found |= known.get(name, set())
        if found:
            raise self._running(name)

    def _running(self, name: str) -> StillRunning:
        return StillRunning(
            f"the VM of {name} runs and has its disk open",
            fix=f"write state: stopped into the Boxfile of {name}, box apply -f it --wait, then "
            "this again, and take the line out",
        )

    async def _do(self, name: str, act: Callable[[Path], T]) -> T:
        """Also when whoever asked has gone: the name is not let go before it is done."""
        folder = self._host.layout.disks(name)
        acting = asyncio.ensure_future(asyncio.to_thread(act, folder))
        try:
            return await asyncio.shield(acting)
        except asyncio.CancelledError:
            await asyncio.wait({acting})
            raise
        except OSError as error:
            raise HostError(
                f"nothing was done: {error.strerror or error}",
                where=str(error.filename or folder),
                fix=f"df -h {folder.parent}",
            ) from error


def _former(kept: str) -> str:
    return f"; what was there is the snapshot {kept}" if kept else "; what was there is erased"
