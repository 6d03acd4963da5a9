"""The throwaway machine that reads and writes a guest's file system, so that the host need not.

It has the sandbox's data disk and the archive's file, no network, and lives for one transfer.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from agent.client import AgentClient
from agent.merged import Merged
from agent.process import GuestError
from reconcilers import disk as disks
from reconcilers.facts import MIB, Disk
from reconcilers.host import Host
from reconcilers.throwaway import TRANSFERS, Throwaways, Work, shut_down
from specs.boxfile import Boxfile, Data
from specs.errors import ChannelError, HostError

RAM_MIB = 256
# With less than this a failure is put down to the host's full disk; one piece of the agent's.
LEAST_ROOM = MIB
# A transfer that is slower than this is given up, so that its sandbox is not held for ever.
LEAST_SECONDS, BYTES_A_SECOND = 900.0, 2 * MIB


class Action(StrEnum):
    """What is done with the disk."""

    EXPORT = "export"
    IMPORT = "import"
    CHANGES = "comparison"
    MERGE = "merge"


@dataclass(frozen=True)
class Job:
    """`archive`: the descriptor of the file that what is done is read from, or written to. `disk`
    and `base`: what is attached in place of the sandbox's own disk, and besides, to compare.
    """

    action: Action
    archive: int
    disk: Disk | None = None
    base: Disk | None = None
    with_data: bool = False  # of a comparison
    theirs: bool = False  # of a merge
    dry_run: bool = False

    @property
    def writes(self) -> bool:
        """Whether the machine may write the archive."""
        return self.action in (Action.EXPORT, Action.CHANGES)


def archive_bytes(disk: Disk) -> int:
    """How long the archive of all that fits on a disk may become: its data, the records and the
    padding of large files (at most 6 %).
    """
    return (disk.size + disk.size // 4 + 64 * MIB) // MIB * MIB


async def run(host: Host, box: Boxfile, job: Job) -> Merged | int | None:
    """Do `job` with the disk of `box`. Nothing else may use that meanwhile, which is the caller's
    to see to.

    Returns how a merge went, or how many changes a comparison found, by the guest's word. Raises
    ConfinementError, HostError, ChannelError, or GuestError in the guest's words. The machine is
    gone when it returns or raises.
    """
    disk = job.disk or disks.observe(host.layout.disks(box.name))
    if disk is None:
        raise HostError(f"the disk of {box.name} is gone")
    machines = Throwaways(host, TRANSFERS)
    work = await work_on(machines, box, disk)
    work = replace(work, archive=(job.archive, job.writes), base=job.base)
    seconds = LEAST_SECONDS + work.most_bytes / BYTES_A_SECOND
    try:
        async with machines.running(work) as machine:
            return await _to_its_end(machine.client, job, seconds)
    except (ChannelError, GuestError) as error:
        _require_room(disk.path.parent)
        _require_room(host.layout.transfers)
        if isinstance(error, GuestError):
            raise
        raise ChannelError(
            f"the helper machine of the {job.action.value} failed: {error.message}", fix="try again"
        ) from error


async def work_on(machines: Throwaways, box: Boxfile, disk: Disk) -> Work:
    """What the one machine of `machines` that `box` may have does with `disk`. Raises BoxError,
    OSError.
    """
    helper = Boxfile(
        name=machines.named(box.name),
        accel=box.accel,
        backend=box.backend,
        isolation=box.isolation,
        cpus=1,
        ram_mib=RAM_MIB,
        data=Data(size_mib=box.data.size_mib),
    )
    image = await asyncio.to_thread(machines.host.images.build, helper.base)
    return Work(helper, image, disk)


def sweep(host: Host) -> None:
    """End what an earlier controller left of any transfer (blocking). Raises OSError, HostError."""
    Throwaways(host, TRANSFERS).sweep()


def _require_room(folder: Path) -> None:
    """Raises HostError when it is the host's disk that is full, which a guest calls an error of its
    own.
    """
    facts = os.statvfs(folder)
    if facts.f_bavail * facts.f_frsize < LEAST_ROOM:
        raise HostError(
            "the host's disk is full; nothing was done", where=str(folder), fix=f"df -h {folder}"
        )


async def _to_its_end(client: AgentClient, job: Job, seconds: float) -> Merged | int | None:
    try:
        told = await _done(client, job, seconds)
    except GuestError:
        await shut_down(client)  # what it removed again, say
        raise
    await shut_down(client)  # what counts was synced before, so it matters little if not
    return told


async def _done(client: AgentClient, job: Job, seconds: float) -> Merged | int | None:
    match job.action:
        case Action.CHANGES:
            return await client.changes(seconds, with_data=job.with_data)
        case Action.MERGE:
            return await client.merge(seconds, theirs=job.theirs, dry_run=job.dry_run)
        case Action.EXPORT:
            await client.export_data(seconds)
        case Action.IMPORT:
            await client.import_data(seconds)
    return None
