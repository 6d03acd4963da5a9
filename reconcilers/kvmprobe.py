"""Boots the real guest kernel on KVM once, in the jail, to learn whether KVM works here.

The probe is a sandbox like any other, but of an instance of its own, so that no user's sandbox can
have its name; whatever a killed controller left of it is removed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from dataclasses import replace

from reconcilers import disk as disks
from reconcilers import guest, microvm
from reconcilers.confinement.cgroup import Cgroup
from reconcilers.host import Host
from reconcilers.layout import Layout
from specs.boxfile import Accel, Boxfile, Data, Isolation
from specs.errors import ChannelError, HostError
from specs.names import HostNames

_NAME = "kvm-probe"
_DISK_MIB = 16


async def boot_once(host: Host) -> None:
    """Boot to the agent's hello within `kvm_probe_seconds` of the configuration. Raises
    ChannelError or HostError when that fails.
    """
    instance = hashlib.sha256(f"{host.layout.instance} {_NAME}".encode()).hexdigest()[:12]
    names = HostNames(instance, _NAME)
    layout = Layout(
        home=host.layout.runtime / ".probe",
        runtime=host.layout.runtime / ".probe-run",
        instance=instance,
    )
    group = Cgroup(names)
    await asyncio.to_thread(_remove, layout, group)
    try:
        await _boot(host, layout, names, group)
    finally:
        await asyncio.to_thread(_remove, layout, group)


async def _boot(host: Host, layout: Layout, names: HostNames, group: Cgroup) -> None:
    box = Boxfile(
        name=_NAME,
        accel=Accel.kvm,
        isolation=Isolation.standard,
        cpus=1,
        ram_mib=256,
        data=Data(size_mib=_DISK_MIB),
    )
    image = host.images.observe(box.base)
    if image is None:
        image = await asyncio.to_thread(host.images.build, box.base)
    await asyncio.to_thread(disks.create, layout.disks(_NAME), _DISK_MIB)
    disk = disks.observe(layout.disks(_NAME))
    if disk is None:
        raise HostError("the probe's disk vanished")
    uid = host.standard_uid()
    policy = host.confinement(box, uid, kvm=True, disk_bytes=disk.most_bytes)
    group.create(policy.limits)
    start = microvm.Start(
        box=box,
        names=names,
        key="probe",
        accel="kvm",
        confinement=policy,
        image=image,
        disk=disk,
        boot=await asyncio.to_thread(host.boot),
        backend=host.backend_for(box),
        host=host.facts,
    )
    seconds = host.config.kvm_probe_seconds
    record, errors = await microvm.start(layout, start)
    try:
        async with asyncio.timeout(seconds):
            client, _ = await guest.open_channel(layout, _NAME, replace(record))
            await client.close()
    except TimeoutError as error:
        raise ChannelError(f"the guest did not answer within {seconds} s") from error
    finally:
        os.close(errors)
        await microvm.kill(record.pid, record.start_time)


def _remove(layout: Layout, group: Cgroup) -> None:
    if group.exists():
        group.kill()
        group.remove()
    for folder in (layout.home, layout.runtime):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
