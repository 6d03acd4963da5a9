"""A machine for one piece of work: a microVM in the jail of any other, gone when the work is done.

Each purpose has an instance of its own, whose names no sandbox of a user can have, so that nothing
of it is taken for one. Whatever a killed controller left of one is ended before anything else may
use its disk: `sweep` at the start, and each machine for its own name.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from agent.client import AgentClient
from agent.process import GuestError
from reconcilers import guest, launchrecord, microvm, procfs
from reconcilers.confinement.cgroup import Cgroup, list_sandboxes
from reconcilers.confinement.policy import Confinement
from reconcilers.confinement.readback import read_vmm
from reconcilers.facts import Disk, Image, Unknown
from reconcilers.host import Host, features_of
from reconcilers.inthread import to_end
from reconcilers.launchrecord import LaunchRecord
from reconcilers.layout import Layout
from reconcilers.network.networks import Networks
from reconcilers.network.usernetworks import UserNetworks
from reconcilers.observe import read_network
from specs.boxfile import Boxfile, Isolation, Network
from specs.errors import BoxError, ChannelError, ConfinementError, HostError, RefusedByPolicy
from specs.names import HostNames, is_name

SHUTDOWN_SECONDS = 20.0
# After SIGKILL, on a host that does much else.
END_SECONDS = 30.0


@dataclass(frozen=True)
class Purpose:
    """`folder` is short, since a socket's path is, and no sandbox's name."""

    name: str
    folder: str


TRANSFERS = Purpose("transfers", ".t")
BUILDS = Purpose("builds", ".b")


@dataclass(frozen=True)
class Work:
    """What a machine is started with. `archive` is the caller's descriptor and whether the guest
    writes it. `base`: a disk to compare the other one with. `building`: the disk takes what the
    guest writes to its root, and is no /data; a host that has no network for it gives it none.
    """

    box: Boxfile
    image: Image
    disk: Disk
    archive: tuple[int, bool] | None = None
    base: Disk | None = None
    building: bool = False

    @property
    def most_bytes(self) -> int:
        """How long the largest file may become that its VMM writes."""
        archive = os.fstat(self.archive[0]).st_size if self.archive is not None else 0
        return max(self.disk.most_bytes, archive, self.base.most_bytes if self.base else 0)


@dataclass(frozen=True)
class Machine:
    """One that runs: its proven channel, where its VMM answers QMP, and why it has no network
    though it asked for one.
    """

    client: AgentClient
    qmp: Path
    no_network: str = ""


class Throwaways:
    """The machines of one purpose on this host."""

    def __init__(self, host: Host, purpose: Purpose) -> None:
        instance = hashlib.sha256(f"{host.layout.instance} {purpose.name}".encode()).hexdigest()
        runtime = host.layout.runtime / purpose.folder
        layout = Layout(home=host.layout.home, runtime=runtime, instance=instance[:12])
        self.host = replace(host, layout=layout, _policies={}, _claims={})
        self._purpose = purpose

    def named(self, text: str) -> str:
        """The name of the machine for `text`: short, since a socket's path is."""
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @contextlib.asynccontextmanager
    async def running(self, work: Work) -> AsyncIterator[Machine]:
        """A machine, proven to be what was started. It and all that belongs to it is gone
        afterwards.

        Raises ConfinementError, HostError, ChannelError.
        """
        async with (
            self.alone(work.box.name) as names,
            self._started(names, work) as machine,
        ):
            yield machine

    @contextlib.asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[HostNames]:
        """The names of the one machine of this name; nothing of it is there before or after."""
        names = self._names(name)
        await to_end(partial(self._remove, names))  # the next one may begin
        try:
            yield names
        finally:
            await to_end(partial(self._remove, names))

    def sweep(self) -> None:
        """End what an earlier controller left (blocking). Raises OSError, HostError."""
        layout = self.host.layout
        found = set(self.host.claims())
        with contextlib.suppress(BoxError):  # control groups that cannot be used hold nothing
            found.update(list_sandboxes(layout.instance))
        with contextlib.suppress(FileNotFoundError):
            found.update(each.name for each in layout.runtime.iterdir())
        for name in filter(is_name, found):
            self._remove(self._names(name))
        with contextlib.suppress(BoxError, OSError):
            self.host.networks.remove_strays(layout.instance, ())

    def _names(self, name: str) -> HostNames:
        return HostNames(self.host.layout.instance, name)

    @contextlib.asynccontextmanager
    async def _started(self, names: HostNames, work: Work) -> AsyncIterator[Machine]:
        host, box, no_network = self.host, work.box, ""
        if work.building and box.network is Network.bridge:
            no_network = await to_end(partial(self._lacking, names, box))
            if no_network:
                box = box.model_copy(update={"network": Network.none})
                work = replace(work, box=box)
        start = await self.prepared(names, work)
        with ExitStack() as opened:
            tap, archive = await self._tap(names, box, opened), _own(work.archive, opened)
            start = replace(start, tap=tap, wire=self._wire(box), archive=archive)
            record, errors = await microvm.start(host.layout, start)
        client: AgentClient | None = None
        try:
            client, record = await guest.open_channel(host.layout, box.name, record)
            guest.require_proof(record, client.hello)
            guest.require_mounts(client.hello)
            if work.building:
                guest.require_build(client.hello)
            if box.network is Network.bridge:
                told = await asyncio.to_thread(host.networks.for_guest, names, box)
                await client.set_network(told.encode())
            await self._require_walls(names, box, record, start.confinement)
            yield Machine(client, host.layout.qmp_socket(box.name), no_network)
        finally:
            if client is not None:
                await client.close()
            os.close(errors)
            await asyncio.shield(microvm.kill(record.pid, record.start_time))

    async def prepared(self, names: HostNames, work: Work) -> microvm.Start:
        """What starts a machine, with its control group and UID, but for network and archive.
        Raises BoxError, OSError.
        """
        host, box = self.host, work.box
        boot = await asyncio.to_thread(host.boot, features_of(box))
        choice = await host.choose_accel(box, boot)
        if choice.refused:
            raise HostError(f"no machine can be started: {choice.message}", fix="box doctor")
        # Of each machine anew: a build may go on for long after policy.toml has changed.
        if choice.accel == "tcg" and (why := host.no_emulation(box)):
            raise RefusedByPolicy(
                f"no machine can be started for it: {choice.message}, and policy.toml says {why}",
                fix="give this host KVM (box doctor), or allow_emulation = true in policy.toml",
            )
        strict = box.isolation is Isolation.strict
        uid = await to_end(partial(host.claim, box.name)) if strict else host.standard_uid()
        kvm, most = choice.accel == "kvm", work.most_bytes
        policy = host.confinement(box, uid, kvm=kvm, disk_bytes=most)
        await to_end(partial(host.cgroup(names).create, policy.limits))
        return microvm.Start(
            box=box,
            names=names,
            key=self._purpose.name,
            accel=choice.accel,
            confinement=policy,
            image=work.image,
            disk=work.disk,
            boot=boot,
            backend=host.backend_for(box),
            host=host.facts,
            base=work.base,
            building=work.building,
        )

    async def _require_walls(
        self, names: HostNames, box: Boxfile, record: LaunchRecord, want: Confinement
    ) -> None:
        """Read all that confines the machine back, as each pass does of a sandbox, before it works.
        Raises ConfinementError, HostError, OSError.
        """
        found = await to_end(partial(read_vmm, record.pid, want, names, at_launch=record.at_launch))
        # What holds an ordinary user's network is not known by the record of such a machine yet.
        if box.network is Network.bridge and self._wire(box) is None:
            network = await read_network(self.host, names.sandbox, box, record.pid)
            if isinstance(network, Unknown):
                raise HostError(f"the machine's network cannot be read: {network.why}")
            found = (*found, *network.readings)
        if lacking := [each for each in found if not each.ok]:
            first = lacking[0]
            text = f"the machine's {first.layer} {first.item} is {first.got}, not {first.want}"
            raise ConfinementError(text, layer=first.layer)

    def _lacking(self, names: HostNames, box: Boxfile) -> str:
        """Why the network of `box` cannot be had here (blocking)."""
        try:
            self.host.networks.raise_up(names, box)
        except (BoxError, OSError) as error:
            if self.host.networks.present(names):
                self.host.networks.remove(names)
            return error.message if isinstance(error, BoxError) else str(error)
        return ""

    def _wire(self, box: Boxfile) -> UserNetworks | None:
        networks = self.host.networks
        bridged = box.network is Network.bridge
        return networks if bridged and isinstance(networks, UserNetworks) else None

    async def _tap(
        self, names: HostNames, box: Boxfile, opened: ExitStack
    ) -> tuple[int, int] | None:
        networks = self.host.networks
        if box.network is not Network.bridge or isinstance(networks, UserNetworks):
            return None
        raising = partial(_raised, networks, names, box)
        descriptors = await to_end(raising, unwanted=lambda found: list(map(os.close, found)))
        for descriptor in descriptors:
            opened.callback(os.close, descriptor)
        return descriptors

    def _remove(self, names: HostNames) -> None:
        """End and remove all that may be left of a machine of this name (blocking)."""
        layout, name = self.host.layout, names.sandbox
        record = launchrecord.read(layout.launch_record(name))
        group = Cgroup(names)
        if group.exists():
            group.kill()
            group.remove()
        # A process that was killed leaves its group first, and has ended a moment later.
        if record is not None and not _ended(record):
            raise HostError(
                f"an earlier machine of the same work (PID {record.pid}) does not end",
                fix=f"see what holds it: cat /proc/{record.pid}/status",
            )
        if self.host.networks.present(names):
            self.host.networks.remove(names)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(layout.sandbox_runtime(name))
        with contextlib.suppress(OSError):
            layout.runtime.rmdir()  # unless another one is at work
        with contextlib.suppress(BoxError):
            self.host.release(name)


def _ended(record: LaunchRecord) -> bool:
    """Whether its VMM is over; one that no control group showed is ended here (blocking)."""
    with contextlib.suppress(PermissionError):  # an ordinary user's has another identity
        procfs.send(record.pid, record.start_time, signal.SIGKILL)
    return procfs.ended(record.pid, record.start_time, END_SECONDS)


def _raised(networks: Networks, names: HostNames, box: Boxfile) -> tuple[int, int]:
    networks.raise_up(names, box)
    return networks.open_tap(names)


async def shut_down(client: AgentClient) -> bool:
    """Unmount its disk in good order and power it off; whether that is what happened."""
    try:
        await client.shutdown(SHUTDOWN_SECONDS, 0.0)
    except (ChannelError, GuestError):
        return False
    return True


def _own(archive: tuple[int, bool] | None, opened: ExitStack) -> tuple[int, bool] | None:
    """A descriptor of its own: a VMM that only reads gets nothing that can be written."""
    if archive is None:
        return None
    access = os.O_RDWR if archive[1] else os.O_RDONLY
    given = os.open(f"/proc/self/fd/{archive[0]}", access | os.O_CLOEXEC)
    opened.callback(os.close, given)
    return given, archive[1]
