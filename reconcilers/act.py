"""Does what a step says, for one sandbox. The only module besides the resources themselves that
changes the host.

Each act may run again after a crash in the middle of it and must then end the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from agent.client import AgentClient
from reconcilers import (
    console,
    diskacts,
    ending,
    guest,
    launchrecord,
    mending,
    microvm,
    mounts,
    procfs,
    qmp,
    steps,
)
from reconcilers import disk as disks
from reconcilers.accel import Choice
from reconcilers.builds import engine, recipes
from reconcilers.confinement.cgroup import Cgroup
from reconcilers.confinement.policy import Confinement
from reconcilers.diskacts import Held
from reconcilers.facts import MIB, Disk
from reconcilers.host import Host, features_of
from reconcilers.launched import as_launched
from reconcilers.launchrecord import LaunchRecord
from reconcilers.live import Live
from reconcilers.mounts import Directory, Rules
from reconcilers.network.usernetworks import UserNetworks
from reconcilers.steps import Step
from specs.boxfile import Boxfile
from specs.errors import BoxError, ChannelError, HostError
from specs.reading import Reading

# The write that failed is tried again at once, and fails again within this time if it does.
RESUME_SECONDS = 0.3


class Actor:
    """Acts on one sandbox. `live` is what the controller holds of its VM, before and after each
    step.
    """

    def __init__(
        self,
        host: Host,
        name: str,
        box: Boxfile | None,
        choice: Choice | None,
        live: Live | None,
        watch: Callable[[str, int], None],
        wake: Callable[[str], None],
        mount_rules: Callable[[], Rules],
        held: Held,
    ) -> None:
        self._others = held
        self._mount_rules = mount_rules
        self._host = host
        self._name = name
        self._names = host.names(name)
        self._box = box
        self._choice = choice
        self._watch = watch
        self._wake = wake
        self.live = live
        self.notes: list[str] = []
        # What was built is not what was planned with: its steps had no network, say.
        self.other_image = False

    async def act(self, step: Step) -> None:
        """Perform `step`. Raises BoxError or OSError; the caller undoes what the pass created."""
        match step:
            case steps.BuildImage():
                await self._build_image(step)
            case steps.ClaimIdentity():
                await asyncio.to_thread(self._claim)
            case steps.ReleaseIdentity():
                await asyncio.to_thread(self._host.release, self._name)
            case steps.CreateCgroup():
                await asyncio.to_thread(self._create_cgroup)
            case steps.RemoveCgroup():
                await asyncio.to_thread(self._host.cgroup(self._names).remove)
            case steps.RaiseNetwork():
                await asyncio.to_thread(self._raise_network)
            case steps.RemoveNetwork():
                await asyncio.to_thread(self._host.networks.remove, self._names)
            case steps.CreateDisk():
                folder = self._host.layout.disks(self._name)
                await asyncio.to_thread(disks.create, folder, step.size_mib)
            case steps.ForkDisk():
                layout = self._host.layout
                await diskacts.fork(layout, self._name, step.parent, step.size_mib, self._others)
            case steps.GrowDisk():
                await asyncio.to_thread(self._grow, step.size_mib)
            case steps.MendDisk():
                disks.mend(self._disk())
            case steps.SetDiskAside():
                kept = diskacts.set_aside(self._host.layout, self._name)
                self.notes.append(f"its data is kept in {kept}")
            case steps.EraseDisk():
                await asyncio.to_thread(disks.erase, self._host.layout.disks(self._name))
            case steps.KillStrays():
                await self._kill_strays(step.pids)
            case steps.StopVmm():
                await self._stop(graceful=step.graceful)
            case steps.LaunchVmm():
                await self._launch(step.key, step.image)
            case steps.ThawVmm():
                self._thaw()
            case steps.ResumeVmm():
                await self._resume()
            case steps.MendReadings():
                await asyncio.to_thread(self._mend, step.readings)
            case steps.ConnectGuest():
                await self._connect()
            case steps.TellNetwork():
                await self._tell_network()
            case steps.ResizeData():
                await self._resize(step.size_mib)
            case steps.RemoveRuntime():
                microvm.remove_runtime(self._host.layout, self._name)
            case _:
                raise HostError(f"no act for {type(step).__name__}")

    async def _build_image(self, step: steps.BuildImage) -> None:
        (box, _), rules, host = self._wanted(), self._mount_rules, self._host
        wanted = recipes.digest_for(host.images, box, network=host.steps_have_network())
        made = await engine.for_start(host, box, rules, again=step.again)
        self.other_image = made.digest != wanted

    # -- identity and cgroup

    def _claim(self) -> None:
        record = launchrecord.read(self._host.layout.launch_record(self._name))
        if record is not None and procfs.alive(record.pid, record.start_time):
            # The registry was lost while the VMM lived: its own UID is the one to claim again.
            self._host.adopt_claim(self._name, record.uid)
        self._host.claim(self._name)

    def _create_cgroup(self) -> None:
        box, choice = self._wanted()
        uid = self._uid(box)
        self._host.cgroup(self._names).create(self._policy(box, choice, uid).limits)

    def _policy(self, box: Boxfile, choice: Choice, uid: int) -> Confinement:
        kvm = choice.accel == "kvm"
        return self._host.confinement(box, uid, kvm=kvm, disk_bytes=self._disk_bytes())

    def _disk_bytes(self) -> int:
        disk = disks.observe(self._host.layout.disks(self._name))
        return disk.most_bytes if disk else 0

    def _uid(self, box: Boxfile) -> int:
        uid = self._host.claimed_uid(self._name, str(box.isolation))
        if uid is None:
            raise HostError("no host UID is claimed for it")
        return uid

    def _wanted(self) -> tuple[Boxfile, Choice]:
        if self._box is None or self._choice is None:
            raise HostError("nothing to start: there is no Boxfile")
        return self._box, self._choice

    def _started(self, record: LaunchRecord) -> Boxfile:
        """The Boxfile as the VM that runs was started with it: it keeps its own limits, mounts and
        network until another one takes its place.
        """
        if self._box is None:
            raise HostError("there is no Boxfile for it")
        return as_launched(self._box, record.settings)

    def _started_as(self, record: LaunchRecord) -> Confinement:
        box, size = self._started(record), self._disk_bytes()
        return self._host.confinement(box, record.uid, kvm=record.accel == "kvm", disk_bytes=size)

    # -- disk

    def _disk(self) -> Disk:
        disk = disks.observe(self._host.layout.disks(self._name))
        if disk is None:
            raise HostError("its data disk is gone")
        return disk

    def _grow(self, size_mib: int) -> None:
        disks.grow(self._disk(), size_mib)
        record = launchrecord.read(self._host.layout.launch_record(self._name))
        if record is not None and procfs.alive(record.pid, record.start_time) is not None:
            # The VMM's file size limit follows its disk; the policy wants it from now on.
            mending.mend_vmm(record, self._started_as(record), self._names)

    async def _resize(self, size_mib: int) -> None:
        live = self._connected()
        size = size_mib * MIB
        await qmp.resize_disk(self._host.layout.qmp_socket(self._name), "data", size)
        assert live.client is not None
        await live.client.resize_data(size)
        live.record = replace(live.record, data_bytes=size)
        launchrecord.write(self._host.layout.launch_record(self._name), live.record)

    # -- VMM

    async def _launch(self, key: str, digest: str) -> None:
        box, choice = self._wanted()
        await self._forget_live()
        uid = self._uid(box)
        confinement = self._policy(box, choice, uid)
        image = self._host.images.at(digest)
        if image is None:
            raise HostError("its root image is not built")
        group = self._host.cgroup(self._names)
        # A fresh group for each start: its counters then speak of this VMM alone.
        await asyncio.to_thread(_renew, group, confinement)
        boot = await asyncio.to_thread(self._host.boot, features_of(box))
        with ExitStack() as opened:
            networks = self._host.networks
            of_user = networks if isinstance(networks, UserNetworks) else None
            tap = None
            if box.network == "bridge" and of_user is None:
                tap = await self._open_tap(opened)
            shares: tuple[tuple[Directory, int], ...] = ()
            if box.mounts:
                shares = await mounts.entered(box, self._mount_rules, opened)
            record, errors = await microvm.start(
                self._host.layout,
                microvm.Start(
                    box=box,
                    names=self._names,
                    key=key,
                    accel=choice.accel,
                    confinement=confinement,
                    image=image,
                    disk=self._disk(),
                    boot=boot,
                    backend=self._host.backend_for(box),
                    host=self._host.facts,
                    tap=tap,
                    wire=of_user if box.network == "bridge" else None,
                    shares=shares,
                ),
            )
        self.live = Live(record)
        log = console.ConsoleLog(self._host.layout.console_log(self._name))
        self.live.keep(console.follow_errors(errors, log))
        self._hold(log)

    async def _open_tap(self, opened: ExitStack) -> tuple[int, int]:
        descriptors = await asyncio.to_thread(self._host.networks.open_tap, self._names)
        for descriptor in descriptors:
            opened.callback(os.close, descriptor)
        return descriptors

    def _hold(self, log: console.ConsoleLog) -> None:
        assert self.live is not None
        self.live.keep(console.follow(self._host.layout.console_socket(self._name), log))
        self._watch(self._name, self.live.record.pid)
        for helper in self.live.record.helpers:
            self._watch(self._name, helper.pid)

    def adopt(self) -> None:
        """Take hold of a VMM that an earlier controller started, if its record says so."""
        record = launchrecord.read(self._host.layout.launch_record(self._name))
        if record is None or procfs.alive(record.pid, record.start_time) is None:
            return
        if self.live is None or not self.live.same_vmm(record):
            former, self.live = self.live, Live(record)
            if former is not None:
                self.live.keep(former.close(ended=True))
            self._hold(console.ConsoleLog(self._host.layout.console_log(self._name)))

    async def _forget_live(self) -> None:
        live, self.live = self.live, None
        if live is not None:
            await live.close(ended=True)

    async def _stop(self, *, graceful: bool) -> None:
        record = launchrecord.read(self._host.layout.launch_record(self._name))
        await ending.end(self._host.layout, self._name, record, self.live, graceful=graceful)
        await self._forget_live()
        # Nothing may outlive its VMM under this name: a killed launcher leaves nothing with a PID
        # on record.
        group = self._host.cgroup(self._names)
        if group.exists():
            await asyncio.to_thread(group.kill)

    async def _kill_strays(self, pids: tuple[int, ...]) -> None:
        group = self._host.cgroup(self._names)
        for pid in pids:
            # Whoever has this PID now is judged, and by its start time nobody else is killed.
            found = procfs.read_stat(pid)
            if found is None:
                continue
            if pid in group.procs() or procfs.carries(pid, self._names):
                await microvm.kill(pid, found.start_time)

    def _thaw(self) -> None:
        live = self._held()
        procfs.send(live.record.pid, live.record.start_time, signal.SIGCONT)

    async def _resume(self) -> None:
        path = self._host.layout.qmp_socket(self._name)
        await qmp.run_on(path)
        await asyncio.sleep(RESUME_SECONDS)
        reason = await qmp.pause_reason(path)
        if reason:
            raise HostError(
                f"its virtual CPUs stay paused ({reason}): the host cannot write its disk",
                fix=f"free space in {self._host.layout.home}; it runs on by itself",
            )

    def _mend(self, readings: tuple[Reading, ...]) -> None:
        record = self._held().record
        box, want = self._started(record), self._started_as(record)
        vm = mending.Running(self._names, box, record, want, self._host.networks)
        mending.mend_readings(vm, readings)

    # -- network

    def _raise_network(self) -> None:
        box, _ = self._wanted()
        self._host.networks.raise_up(self._names, box)

    async def _tell_network(self) -> None:
        """The guest's side of the link; told again only when it has changed."""
        live = self._connected()
        box = self._started(live.record)
        told = await asyncio.to_thread(self._host.networks.for_guest, self._names, box)
        if live.record.guest_network == told:
            return
        assert live.client is not None
        if lacking := await live.client.set_network(told.encode()):
            self.notes.append(f"its network works, but {lacking}")
        live.record = replace(live.record, guest_network=told)
        launchrecord.write(self._host.layout.launch_record(self._name), live.record)

    # -- guest

    async def _connect(self) -> None:
        live = self._held()
        if live.client is not None:
            with contextlib.suppress(BoxError):
                await live.client.ping(guest.ANSWER_TIMEOUT)
                return
            await live.drop_channel()
        client, live.record = await guest.open_channel(self._host.layout, self._name, live.record)
        try:
            guest.require_proof(live.record, client.hello)
            guest.require_mounts(client.hello)
            await guest.mount_shares(client, self._started(live.record))
        except BaseException:
            # Also when this is given up because the Boxfile changed: the guest has one port, and
            # who holds it keeps everybody else out.
            await client.close()
            raise
        live.client = client
        live.keep(self._tell_closed(live, client))
        if self._started(live.record).network == "bridge":
            await self._tell_network()

    async def _tell_closed(self, live: Live, client: AgentClient) -> None:
        """A channel that breaks is looked at now, not at the next timed pass."""
        await client.closed.wait()
        if live.client is client and not live.stopping:
            self._wake(self._name)

    def _held(self) -> Live:
        self.adopt()
        if self.live is None:
            raise ChannelError("its VMM is not running")
        return self.live

    def _connected(self) -> Live:
        live = self._held()
        if live.client is None:
            raise ChannelError("its guest is not connected")
        return live


def _renew(group: Cgroup, confinement: Confinement) -> None:
    if group.exists():
        group.kill()
        group.remove()
    group.create(confinement.limits)
