"""Reads every resource of one sandbox off the host. Changes nothing.

What cannot be read becomes `Unknown`; only a definite "not there" becomes None.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

from reconcilers import disk as disks
from reconcilers import helpers, launchrecord, procfs, qmp
from reconcilers.builds import recipes
from reconcilers.confinement.policy import Confinement
from reconcilers.confinement.readback import read_vmm
from reconcilers.confinement.seccomp import load_profile
from reconcilers.confinement.sharepolicy import ROLE
from reconcilers.facts import Disk, Guest, Image, Network, Observed, Unknown, Vmm
from reconcilers.host import Host
from reconcilers.launched import as_launched
from reconcilers.launchrecord import LaunchRecord
from reconcilers.layout import Layout
from reconcilers.live import Live
from reconcilers.mounts import Directory, Refused
from reconcilers.runtimefiles import read_files
from specs.boxfile import Boxfile
from specs.errors import BoxError
from specs.reading import Reading

PING_TIMEOUT = 5.0


async def observe(
    host: Host,
    name: str,
    box: Boxfile | None,
    live: Live | None,
    *,
    marked: Set[int] = frozenset(),
    had_disk: bool = False,
    directories: Sequence[Directory] = (),
    lost: Sequence[Refused] = (),
    kept_image: str = "",
) -> Observed:
    """Everything the host shows of sandbox `name`. `marked` are PIDs known to carry its name,
    `directories` what the mounts that its VMM was started with lead to now, `lost` those of them
    that may not be shared any more. `kept_image` is the digest of the one that a VM which runs is
    to keep.
    """
    runtime = host.layout.sandbox_runtime(name)
    record = launchrecord.read(host.layout.launch_record(name)) if runtime.exists() else None
    wants_vm = box is not None and box.state == "running"
    uid = host.claimed_uid(name, str(box.isolation) if box is not None else "strict")
    launched = as_launched(box, record.settings) if box is not None and record is not None else box
    cgroup, inside = _cgroup(host, name)
    disk = _disk(host.layout.disks(name))
    vmm = await _vmm(host, name, launched, record, disk, directories)
    known = {vmm.pid} if isinstance(vmm, Vmm) else set[int]()
    bridged = launched is not None and launched.network == "bridge"
    pid = vmm.pid if isinstance(vmm, Vmm) and bridged else 0
    shown = launched if pid else box
    network = await read_network(host, name, shown if wants_vm else None, pid)
    if isinstance(vmm, Vmm):
        # The rules of a network that it was started with are a wall around it like any other.
        walls = network.readings if bridged and isinstance(network, Network) else ()
        gone = tuple(map(_lost, lost))
        vmm = replace(vmm, readings=(*vmm.readings, *gone, *walls), outdated=launched is not box)
    if record is not None and known:
        known |= helpers.living(record)  # without their VMM they are strays
    # The list of marked processes is as old as the last scan: a PID in it may be another's by now.
    ours = {pid for pid in marked - inside - known if procfs.carries(pid, host.names(name))}
    # A VMM that lacks a wall is replaced, and must not gain time by leaving a question unanswered.
    lacking = isinstance(vmm, Vmm) and any(not r.ok and r.mend != "in place" for r in vmm.readings)
    answering = None if lacking else await _guest(live, vmm)
    kept = kept_image if isinstance(vmm, Vmm) else ""
    strays = tuple(sorted(pid for pid in inside | ours if pid not in known and _lives(pid)))
    return Observed(
        image=_image(host, box, kept) if wants_vm and box is not None else None,
        uid=uid if wants_vm or box is None or box.isolation == "strict" else None,
        cgroup=cgroup,
        disk=disk,
        vmm=vmm,
        network=network,
        strays=strays,
        guest=answering,
        paused="" if lacking or answering is not None else await _paused(host, name, vmm),
        runtime=runtime.exists(),
        had_disk=had_disk,
    )


def _lost(refused: Refused) -> Reading:
    layer, why = f"mounts[{refused.index}]", f"{refused.host}: {refused.why}"
    return Reading(layer, "host", "may be shared", why, False, "stat(2)", "live", "replace")


def _lives(pid: int) -> bool:
    found = procfs.read_stat(pid)
    # A kernel thread is nobody's stray and cannot be killed; it ends with the VM it belongs to.
    return found is not None and not found.dead and not found.kernel


def _cgroup(host: Host, name: str) -> tuple[bool | Unknown, set[int]]:
    group = host.cgroup(host.names(name))
    try:
        if not group.exists():
            return False, set()
        return True, set(group.procs())
    except (OSError, BoxError) as error:
        return Unknown(str(error)), set()


def _image(host: Host, box: Boxfile, kept: str) -> Image | Unknown | None:
    try:
        if kept and (found := host.images.at(kept)) is not None:
            return found
        return recipes.observe(host.images, box, network=host.steps_have_network())
    except (OSError, BoxError) as error:
        return Unknown(str(error))


def _disk(folder: Path) -> Disk | Unknown | None:
    try:
        return disks.observe(folder)
    except (OSError, BoxError) as error:
        return Unknown(str(error))


async def read_network(host: Host, name: str, box: Boxfile | None, pid: int) -> Network | Unknown:
    """The network of a sandbox whose VMM is `pid` (0: it has none)."""
    names = host.names(name)
    try:
        if box is None or box.network == "none":
            return Network(host.networks.present(names))
        # It waits for netlink, and pyroute2 runs an event loop of its own in the thread it is in.
        return await asyncio.to_thread(host.networks.observe, names, box, pid)
    except FileNotFoundError:
        return Unknown("its VMM ended while its network was read")
    except (OSError, BoxError) as error:
        return Unknown(str(error))


async def _vmm(
    host: Host,
    name: str,
    box: Boxfile | None,
    record: LaunchRecord | None,
    disk: Disk | Unknown | None,
    directories: Sequence[Directory],
) -> Vmm | Unknown | None:
    if record is None or record.host_boot_id != procfs.host_boot_id():
        return None
    living = procfs.alive(record.pid, record.start_time)
    if living is None:
        return None
    readings: tuple[Reading, ...] = ()
    if box is not None and box.state == "running":
        uid = host.claimed_uid(name, str(box.isolation))
        try:
            readings = await confinement_of(host, name, box, record, uid, _size(disk), directories)
        except (OSError, BoxError) as error:
            if procfs.alive(record.pid, record.start_time) is None:
                return None  # it ended while it was being read
            return Unknown(f"its confinement cannot be read: {error}")
    return Vmm(record.pid, record.start_time, record.key, living.frozen, readings)


def wanted_confinement(
    host: Host, box: Boxfile, record: LaunchRecord, uid: int | None, disk_bytes: int
) -> Confinement:
    """The jail that the Boxfile asks for, with the accelerator its VMM was started with."""
    kvm = record.accel == "kvm"
    return host.confinement(box, record.uid if uid is None else uid, kvm=kvm, disk_bytes=disk_bytes)


async def confinement_of(
    host: Host,
    name: str,
    box: Boxfile,
    record: LaunchRecord,
    uid: int | None,
    disk_bytes: int,
    directories: Sequence[Directory],
) -> tuple[Reading, ...]:
    """`read_confinement` without ever holding up the event loop: an ordinary user's may have to ask
    a process (`confinement.inside`), which can stand still.
    """
    read = partial(read_confinement, host, name, box, record, uid, disk_bytes, directories)
    return read() if os.geteuid() == 0 else await asyncio.to_thread(read)


def read_confinement(
    host: Host,
    name: str,
    box: Boxfile,
    record: LaunchRecord,
    uid: int | None,
    disk_bytes: int,
    directories: Sequence[Directory] = (),
) -> tuple[Reading, ...]:
    """Every reading of the live VMM and its helpers against the policy of its Boxfile. Raises
    OSError, BoxError.
    """
    want = wanted_confinement(host, box, record, uid, disk_bytes)
    return (
        *read_vmm(record.pid, want, host.names(name), at_launch=record.at_launch),
        *read_files(host.layout, name),
        *_helpers(host, name, record, want, directories),
    )


def _helpers(
    host: Host,
    name: str,
    record: LaunchRecord,
    want: Confinement,
    directories: Sequence[Directory],
) -> Iterator[Reading]:
    if record.helpers:
        program = load_profile(ROLE, False)
        yield from helpers.readings(record, want, program, host.names(name), directories)


def disk_bytes(layout: Layout, name: str) -> int:
    """How large the written file of a sandbox's data disk may become, 0 where there is none."""
    return _size(_disk(layout.disks(name)))


def _size(disk: Disk | Unknown | None) -> int:
    return disk.most_bytes if isinstance(disk, Disk) else 0


def _stands_still(vmm: Vmm) -> bool:
    """Stopped by a signal, or its group is frozen: whatever it is asked, it cannot answer."""
    held = (r for r in vmm.readings if (r.layer, r.item) == ("cgroup", "frozen"))
    return vmm.frozen or any(not reading.ok for reading in held)


async def _paused(host: Host, name: str, vmm: Vmm | Unknown | None) -> str:
    """Asked only when the guest is silent: QEMU holds the CPUs of a guest whose disk is full."""
    if not isinstance(vmm, Vmm) or _stands_still(vmm):
        return ""
    try:
        return await qmp.pause_reason(host.layout.qmp_socket(name))
    except BoxError:
        return ""


async def _guest(live: Live | None, vmm: Vmm | Unknown | None) -> Guest | None:
    if live is None or live.client is None or not isinstance(vmm, Vmm):
        return None
    if not _stands_still(vmm):
        try:
            await live.client.ping(PING_TIMEOUT)
        except BoxError as error:
            live.broken = str(live.client.failure or error) if live.client else str(error)
            await live.drop_channel()
            return None
    hello = live.client.hello
    record = live.record
    return Guest(hello.kernel, hello.boot_id, record.data_bytes, record.guest_network)
