"""A VMM started by hand in a sandbox's name: its cgroup, sockets, identity and launch record.

It goes through the product's own launcher, so that it lacks exactly what the `Sabotage` takes away
and nothing else. The controller must be stopped meanwhile. What a test asserts it reads from the
host.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from controller.home import read_home
from controller.records import Record
from controller.store import Store
from controller.wiring import build_host, load_config
from reconcilers import disk as disks
from reconcilers import launchrecord, microvm
from reconcilers.backend import Backend, HostFacts, VmmCommand
from reconcilers.confinement import following
from reconcilers.confinement.policy import Confinement
from reconcilers.confinement.readback import read_vmm
from reconcilers.confinement.rootview import root_files
from reconcilers.facts import Disk, Image
from reconcilers.host import Host
from reconcilers.launchrecord import LaunchRecord
from specs.boxfile import Boxfile
from specs.names import HostNames
from specs.reading import Reading
from tests.vm.harness import Home
from tests.vm.jailed import BARE, QEMU, SANDBOX_OPTIONS
from tests.vm.launchers import PRELUDE


@dataclass(frozen=True)
class Sabotage:
    """One wall taken away: `program` runs in the launcher before it begins.

    `filtered`: QEMU's own system call filter stays on; it would set no_new_privs by itself.
    `forge` changes the launch record's readings; `binary` runs instead of QEMU's.
    """

    program: str = ""
    filtered: bool = True
    forge: Callable[[Iterable[Reading]], tuple[Reading, ...]] = tuple
    binary: Path | None = None


class _Bare:
    """A backend whose VM never runs: everything of a VMM but the guest, started in 40 ms."""

    name = "qemu"

    def __init__(self, filtered: bool) -> None:
        self._more = ["-sandbox", SANDBOX_OPTIONS] if filtered else []

    def check(self, box: Boxfile, host: HostFacts) -> tuple[str, ...]:
        return ()

    def command(
        self,
        box: Boxfile,
        accel: str,
        marker: str,
        host: HostFacts,
        layers: tuple[str, ...] = ("raw",),
        archive: str = "",
        base: tuple[str, ...] = (),
        building: bool = False,
    ) -> VmmCommand:
        return VmmCommand((QEMU, *BARE, "-name", marker, *self._more))

    def merging(
        self, marker: str, host: HostFacts, layers: tuple[str, ...], into: int
    ) -> VmmCommand:
        raise NotImplementedError  # no test asks for it


class Handmade:
    """One VMM started by hand in the name of `sandbox`, whose controller is stopped."""

    def __init__(self, home: Home, sandbox: str) -> None:
        layout = read_home(home.path)
        assert layout is not None and home.controller is None
        self.layout = layout
        self.host: Host = build_host(layout, load_config(layout))
        self.names = HostNames(layout.instance, sandbox)
        found = Store(layout).load(sandbox)
        former = launchrecord.read(layout.launch_record(sandbox))
        assert former is not None and isinstance(found, Record) and found.spec is not None
        self.box: Boxfile = found.spec
        self.former: LaunchRecord = former
        self.record: LaunchRecord = former
        disk = disks.observe(layout.disks(sandbox))
        assert isinstance(disk, Disk)
        self.disk = disk
        self.want: Confinement = self.host.confinement(
            self.box, former.uid, kvm=False, disk_bytes=disk.most_bytes
        )

    @property
    def pid(self) -> int:
        return self.record.pid

    def start(self, sabotage: Sabotage | None) -> None:
        """Ends the sandbox's VMM and starts another; a whole one, with its guest, for None."""
        _end(self.former.pid)
        group = self.host.cgroup(self.names)
        group.kill()
        group.remove()
        group.create(self.want.limits)
        image = self.host.images.observe(self.box.base)
        assert isinstance(image, Image)
        backend: Backend = self.host.backend_for(self.box)
        if sabotage is not None:
            backend = _Bare(sabotage.filtered)
        wanted = microvm.Start(
            box=self.box,
            names=self.names,
            key=self.former.key,
            accel=self.former.accel,
            confinement=self.want,
            image=image,
            disk=self.disk,
            boot=self.host.boot(),
            backend=backend,
            host=self.host.facts,
        )
        with contextlib.ExitStack() as patched:
            if sabotage is not None:
                _sabotage(patched, sabotage)
            self.record, errors = asyncio.run(microvm.start(self.layout, wanted))
        os.close(errors)
        if sabotage is not None:
            forged = sabotage.forge(self.record.at_launch)
            # a guest that has spoken: the record of a VM that was well when it was last looked at
            self.record = replace(
                self.record, at_launch=forged, guest_boot_id=self.former.guest_boot_id
            )
            launchrecord.write(self.layout.launch_record(self.names.sandbox), self.record)

    def faults(self) -> tuple[Reading, ...]:
        """What readback says against it, with the launch record that claims all is well."""
        found = read_vmm(self.pid, self.want, self.names, at_launch=self.record.at_launch)
        return tuple(each for each in found if not each.ok)

    def gone(self) -> bool:
        """Whether it has ended; reaps it, since it may be our child."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state in "ZX"

    def close(self) -> None:
        _end(self.pid)


def _sabotage(patched: contextlib.ExitStack, sabotage: Sabotage) -> None:
    program = PRELUDE.format(sabotage.program)
    patched.enter_context(mock.patch.object(following, "_BOOTSTRAP", program))
    if sabotage.binary is not None:
        other = sabotage.binary

        def swapped(binary: str, *, kvm: bool) -> tuple[object, ...]:
            files = root_files(binary, kvm=kvm)
            return tuple(replace(f, host=str(other)) if f.inside == binary else f for f in files)

        patched.enter_context(mock.patch("reconcilers.microvm.root_files", swapped))
        # the launch notices the exchange, as it must; here somebody forged what it would report
        genuine = os.stat(QEMU)
        identity = (genuine.st_dev, genuine.st_ino)
        target = "reconcilers.confinement.start._verify"
        patched.enter_context(mock.patch(target, lambda pid, binary: identity))


def _end(pid: int) -> None:
    """SIGKILL and wait; another process may be its parent."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert select.select([descriptor], [], [], 20)[0], f"{pid} does not die"
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    finally:
        os.close(descriptor)
