"""The helpers beside one VMM: a virtiofsd for each mount, started before it, read back with it.

A helper faces the guest as the VMM does, so it has the same jail from the same launcher and the
same readings. It serves one connection, the one the VMM is given, and ends when that closes. It
must not decide which directories may be shared.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from reconcilers import procfs, sockets, virtiofsd, wire
from reconcilers.confinement import filters
from reconcilers.confinement.following import end
from reconcilers.confinement.policy import Confinement, Program, Shared
from reconcilers.confinement.readback import mend, read_helper
from reconcilers.confinement.rootview import root_files
from reconcilers.confinement.sharepolicy import ROLE, share_confinement
from reconcilers.confinement.start import Launched, LaunchRequest, launch
from reconcilers.confinement.wirepolicy import PROFILES
from reconcilers.launchrecord import HelperRecord, LaunchRecord
from reconcilers.layout import Layout
from reconcilers.mounts import Directory
from specs.errors import ConfinementError, HostError
from specs.names import HostNames
from specs.reading import Mend, Reading

READY_SECONDS = 10.0
STOPPED = "stopped by a signal"


@dataclass(frozen=True)
class Serving:
    """What every helper of one VMM is started with."""

    layout: Layout
    names: HostNames
    vmm: Confinement
    program: Program
    errors_end: int


async def serve(
    wanted: Serving,
    directory: Directory,
    descriptor: int,
    beside: frozenset[int],
    opened: ExitStack,
) -> tuple[HelperRecord, int]:
    """Start the helper of one mount; its record, and the connected socket for the VMM, open as long
    as `opened`.

    It has its directory as root when this returns: no guest talks to one that has not. Raises
    ConfinementError naming the layer, or HostError; then nothing of it is left.
    """
    found = virtiofsd.find()
    if found is None:
        raise HostError("virtiofsd is not installed", fix=virtiofsd.FIX)
    shared = Shared(*directory.identity, directory.writable, directory.owner)
    path = wanted.layout.mount_socket(wanted.names.sandbox, directory.index)
    listener = opened.enter_context(sockets.listen(path))
    try:
        want = share_confinement(wanted.vmm, wanted.program, shared)
        launched = await launch(
            LaunchRequest(
                names=wanted.names,
                confinement=want,
                argv=found.command(want.capabilities),
                descriptors={virtiofsd.SOCKET_FD: listener.fileno()},
                stderr_fd=wanted.errors_end,
                share_fd=descriptor,
                beside=beside,
            ),
            root_files=root_files(str(found.binary)),
        )
    except ConfinementError as error:
        text = f"mounts[{directory.index}] {directory.path}: {error.message}"
        raise ConfinementError(text, layer=error.layer, fix=error.fix) from error
    try:
        connection = opened.enter_context(sockets.connect(path))
        path.unlink()  # one connection is all it takes, and nobody else is to make one
        listener.close()
        await _until_ready(launched, want, directory)
    except BaseException:
        end(launched.pidfd)
        raise
    opened.callback(os.close, launched.pidfd)
    return (
        HelperRecord(
            role=ROLE,
            item=directory.index,
            pid=launched.pid,
            start_time=launched.start_time,
            exe=launched.exe,
            at_launch=launched.at_launch,
            path=directory.path,
            directory=directory.identity,
            owner=directory.owner,
            writable=directory.writable,
        ),
        connection.fileno(),
    )


async def _until_ready(launched: Launched, want: Confinement, directory: Directory) -> None:
    """It changes its root once it is connected, which /proc shows, then loads its own filter."""
    limit = time.monotonic() + READY_SECONDS
    while True:
        if procfs.alive(launched.pid, launched.start_time) is None:
            raise HostError(
                f"the virtiofsd of mounts[{directory.index}] {directory.path} ended at once",
                fix="box logs --console NAME shows its last words",
            )
        if procfs.root_of(launched.pid) == directory.identity and await filters.all_loaded(
            launched.pid, launched.at_launch, want.own_filters, limit - time.monotonic()
        ):
            return
        if time.monotonic() > limit:
            raise HostError(f"the virtiofsd of {directory.path} did not get ready")
        await asyncio.sleep(0.005)


def living(record: LaunchRecord) -> frozenset[int]:
    """The PIDs of the helpers that this record describes and that still run."""
    alive = (each for each in record.helpers if procfs.alive(each.pid, each.start_time))
    return frozenset(each.pid for each in alive)


def readings(
    record: LaunchRecord,
    vmm: Confinement,
    program: Program,
    names: HostNames,
    directories: Sequence[Directory],
) -> Iterator[Reading]:
    """Everything read of the helpers: their jails, and whether they serve what they should."""
    now = {each.index: each for each in directories}
    for helper in record.helpers:
        layer = _layer(helper)
        if helper.role in PROFILES:
            yield from _of_one(helper, layer, vmm, program, names)
            continue
        if (directory := now.get(helper.item)) is not None:
            want, got = (
                _named(directory.path, directory.identity),
                _named(helper.path, helper.directory),
            )
            yield _reading(layer, "host", want, got, "stat(2), and the launch record")
            if vmm.user_namespace is None:  # else files are shown as they are
                want, got = ("{}:{}".format(*each) for each in (directory.owner, helper.owner))
                yield _reading(layer, "owner", want, got, "stat(2), and the launch record")
        yield from _of_one(helper, layer, vmm, program, names)


def _of_one(
    helper: HelperRecord, layer: str, vmm: Confinement, program: Program, names: HostNames
) -> Iterator[Reading]:
    source = f"/proc/{helper.pid}/stat"
    try:
        living = procfs.alive(helper.pid, helper.start_time)
        if living is None:
            raise ProcessLookupError
        found: tuple[Reading, ...]
        if helper.role in PROFILES:
            found = tuple(wire.read_one(helper, vmm, names))
        else:
            shared = Shared(*helper.directory, helper.writable, helper.owner)
            want = share_confinement(vmm, program, shared)
            found = read_helper(helper.pid, want, names, at_launch=helper.at_launch)
    except ProcessLookupError:
        yield _reading(layer, helper.role, "running", "ended", source)
        return
    seen = STOPPED if living.frozen else "running"
    mended: Mend = "in place" if living.frozen else "replace"
    state = _reading(layer, helper.role, "running", seen, source)
    yield replace(state, mend=mended)
    for each in found:
        yield replace(each, item=f"{helper.label}{each.item}")


def faults_of(helper: HelperRecord, readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """Those of `readings` that are about this helper."""
    state = (_layer(helper), helper.role)
    return tuple(
        r for r in readings if r.item.startswith(helper.label) or (r.layer, r.item) == state
    )


def mend_one(
    helper: HelperRecord,
    vmm: Confinement,
    program: Program,
    names: HostNames,
    faults: Sequence[Reading],
) -> None:
    """Put back what differs of one helper and can change in place. Raises HostError."""
    if any(each.got == STOPPED for each in faults):
        procfs.send(helper.pid, helper.start_time, signal.SIGCONT)
    if helper.role in PROFILES:
        want = wire.confinement_of(vmm, helper.role)
    else:
        shared = Shared(*helper.directory, helper.writable, helper.owner)
        want = share_confinement(vmm, program, shared)
    plain = tuple(replace(each, item=each.item.removeprefix(helper.label)) for each in faults)
    procfs.require(helper.pid, helper.start_time)
    mend(helper.pid, want, names, plain)


def _layer(helper: HelperRecord) -> str:
    return "network" if helper.role in PROFILES else f"mounts[{helper.item}]"


def _named(path: str, identity: tuple[int, int]) -> str:
    return f"{path} ({identity[0]}:{identity[1]})"


def _reading(layer: str, item: str, want: str, got: str, source: str) -> Reading:
    return Reading(layer, item, want, got, want == got, source, "live", "replace")
