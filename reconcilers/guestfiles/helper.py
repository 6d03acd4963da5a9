"""The throwaway machine that reads and writes a guest's file system, so that the host need not.

It has the sandbox's data disk and the archive's file, no network, and lives for one transfer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from agent.client import AgentClient
from agent.merged import Merged
from agent.process import GuestError
from reconcilers import disk as disks
from reconcilers import guest, microvm
from reconcilers.facts import MIB, Disk
from reconcilers.host import Host
from reconcilers.inthread import to_end
from reconcilers.launchrecord import LaunchRecord
from reconcilers.layout import Layout
from reconcilers.throwaway import TRANSFERS, Throwaways, shut_down
from specs.boxfile import Boxfile, Data, Isolation
from specs.errors import ChannelError, HostError
from specs.names import HostNames

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
    async with alone(host, box) as (ours, names):
        return await _run(ours, names, box, disk, job)


@contextlib.asynccontextmanager
async def alone(host: Host, box: Boxfile) -> AsyncIterator[tuple[Host, HostNames]]:
    """The one helper machine that `box` may have: our host and its names. Nothing of it is there
    before or after. Raises HostError, OSError.
    """
    machines = Throwaways(host, TRANSFERS)
    async with machines.alone(machines.named(box.name)) as names:
        yield machines.host, names


def sweep(host: Host) -> None:
    """End what an earlier controller left of any transfer (blocking). Raises OSError, HostError."""
    Throwaways(host, TRANSFERS).sweep()


async def prepared(
    ours: Host, names: HostNames, box: Boxfile, disk: Disk, most: int
) -> microvm.Start:
    """What starts a helper machine for `box` on `disk`, with its control group and UID. It may make
    no file longer than `most` bytes. Raises BoxError, OSError.
    """
    helper = Boxfile(
        name=names.sandbox,
        accel=box.accel,
        backend=box.backend,
        isolation=box.isolation,
        cpus=1,
        ram_mib=RAM_MIB,
        data=Data(size_mib=box.data.size_mib),
    )
    boot = await asyncio.to_thread(ours.boot)
    choice = await ours.choose_accel(helper, boot)
    if choice.refused:
        raise HostError(f"no machine can be started for this: {choice.message}")
    image = await asyncio.to_thread(ours.images.build, helper.base)
    strict = box.isolation is Isolation.strict
    uid = await to_end(partial(ours.claim, names.sandbox)) if strict else ours.standard_uid()
    policy = ours.confinement(helper, uid, kvm=choice.accel == "kvm", disk_bytes=most)
    await to_end(partial(ours.cgroup(names).create, policy.limits))
    return microvm.Start(
        box=helper,
        names=names,
        key="transfer",
        accel=choice.accel,
        confinement=policy,
        image=image,
        disk=disk,
        boot=boot,
        backend=ours.backend_for(helper),
        host=ours.facts,
    )


async def _run(
    host: Host, names: HostNames, box: Boxfile, disk: Disk, job: Job
) -> Merged | int | None:
    most = max(disk.most_bytes, os.fstat(job.archive).st_size)
    if job.base is not None:
        most = max(most, job.base.most_bytes)
    start = await prepared(host, names, box, disk, most)
    # Of its own: a VMM that only reads gets nothing that can be written.
    access = os.O_RDWR if job.writes else os.O_RDONLY
    given = os.open(f"/proc/self/fd/{job.archive}", access | os.O_CLOEXEC)
    start = replace(start, archive=(given, job.writes), base=job.base)
    try:
        record, errors = await microvm.start(host.layout, start)
    finally:
        os.close(given)
    try:
        return await _transfer(host.layout, names.sandbox, record, job, most)
    except (ChannelError, GuestError) as error:
        _require_room(disk.path.parent)
        _require_room(host.layout.transfers)
        if isinstance(error, GuestError):
            raise
        raise ChannelError(
            f"the helper machine of the {job.action.value} failed: {error.message}", fix="try again"
        ) from error
    finally:
        os.close(errors)
        await asyncio.shield(microvm.kill(record.pid, record.start_time))


def _require_room(folder: Path) -> None:
    """Raises HostError when it is the host's disk that is full, which a guest calls an error of its
    own.
    """
    facts = os.statvfs(folder)
    if facts.f_bavail * facts.f_frsize < LEAST_ROOM:
        raise HostError(
            "the host's disk is full; nothing was done", where=str(folder), fix=f"df -h {folder}"
        )


async def _transfer(
    layout: Layout, name: str, record: LaunchRecord, job: Job, size: int
) -> Merged | int | None:
    client: AgentClient | None = None
    try:
        client, record = await guest.open_channel(layout, name, record)
        guest.require_proof(record, client.hello)
        guest.require_mounts(client.hello)
        seconds = LEAST_SECONDS + size / BYTES_A_SECOND
        try:
            told = await _done(client, job, seconds)
        except GuestError:
            await shut_down(client)  # what it removed again, say
            raise
        await shut_down(client)  # what counts was synced before, so it matters little if not
        return told
    finally:
        if client is not None:
            await client.close()


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
