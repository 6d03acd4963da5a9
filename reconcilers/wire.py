"""The two helpers of an ordinary user's network: started before the VMM, read back with it.

The keeper makes the user namespace that the VMM will be in, and its own network namespace is the
one with the rules; pasta carries on the host's network what the rules let through. Both have the
jail of a VMM from the same launcher. Rules come first, then links, then pasta, then the VMM.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from reconcilers import pasta, procfs
from reconcilers.confinement import filters
from reconcilers.confinement.policy import Confinement
from reconcilers.confinement.readback import read_helper
from reconcilers.confinement.rootview import RootFile, root_files
from reconcilers.confinement.seccomp import load_profile
from reconcilers.confinement.start import Launched, LaunchRequest, launch
from reconcilers.confinement.wirepolicy import KEEPER, PASTA, PROFILES, wire_confinement
from reconcilers.inthread import to_end
from reconcilers.launchrecord import HelperRecord
from reconcilers.network.addresses import mac
from reconcilers.network.innerclient import Made
from reconcilers.network.usernetworks import UserNetworks, link_device
from specs.boxfile import Boxfile
from specs.errors import ConfinementError, HostError
from specs.names import HostNames
from specs.reading import Reading

KEEPER_COMMAND = ("/usr/bin/sleep", "infinity")
READY_SECONDS = 10.0


@dataclass(frozen=True)
class Wiring:
    """What a VMM is wired with."""

    names: HostNames
    box: Boxfile
    vmm: Confinement
    networks: UserNetworks
    errors_end: int


@dataclass(frozen=True)
class Wire:
    """Descriptors for the VMM, open as long as the stack that was given: its tap, its network
    namespace, its user namespace.
    """

    tap: int
    space: int
    users: int


async def connect(wiring: Wiring, beside: list[HelperRecord], opened: ExitStack) -> Wire:
    """Make the network of a VMM that is about to start. The helpers are appended to `beside` as
    soon as they run, for the caller to end should anything fail.

    Raises ConfinementError naming the layer, or HostError.
    """
    wanted = await asyncio.to_thread(wiring.networks.wanted, wiring.names, wiring.box)
    keeper = await _start(wiring, KEEPER, KEEPER_COMMAND, root_files(KEEPER_COMMAND[0]), {}, beside)
    try:
        users = os.open(f"/proc/{keeper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"the keeper of its namespaces ended at once: {error.strerror}") from error
    opened.callback(os.close, users)  # whose it is, is seen when the network is made in it
    process = (keeper.pid, keeper.start_time)
    made = await to_end(lambda: wiring.networks.build(wanted, process), unwanted=_let_go)
    for descriptor in (made.space, made.tap):
        opened.callback(os.close, descriptor)
    try:
        device = await asyncio.to_thread(link_device)
        command = pasta.command(wanted, device, mac(wiring.names, "host"))
        files = pasta.named(root_files(str(pasta.BINARY)))
        await _start(wiring, PASTA, command, files, {pasta.TAP_FD: made.uplink}, beside)
    finally:
        os.close(made.uplink)  # with pasta the uplink ends: nobody else may hold it
    await _until_ready(beside[-1], confinement_of(wiring.vmm, PASTA))
    return Wire(made.tap, made.space, users)


def _let_go(made: Made) -> None:
    """Of a network that nobody waits for any more: with its descriptors it ends."""
    for descriptor in (made.space, made.tap, made.uplink):
        os.close(descriptor)


async def _start(
    wiring: Wiring,
    role: str,
    argv: tuple[str, ...],
    files: tuple[RootFile, ...],
    descriptors: dict[int, int],
    beside: list[HelperRecord],
) -> Launched:
    try:
        launched = await launch(
            LaunchRequest(
                names=wiring.names,
                confinement=confinement_of(wiring.vmm, role),
                argv=argv,
                descriptors=descriptors,
                stderr_fd=wiring.errors_end,
                beside=frozenset(each.pid for each in beside),
            ),
            root_files=files,
        )
    except ConfinementError as error:
        text = f"{role} of its network: {error.message}"
        raise ConfinementError(text, layer=error.layer, fix=error.fix) from error
    beside.append(
        HelperRecord(
            role=role,
            item=0,
            pid=launched.pid,
            start_time=launched.start_time,
            exe=launched.exe,
            at_launch=launched.at_launch,
        )
    )
    os.close(launched.pidfd)
    return launched


async def _until_ready(helper: HelperRecord, want: Confinement) -> None:
    """pasta loads a filter of its own on top of the jail's when it begins to serve."""
    if await filters.all_loaded(helper.pid, helper.at_launch, want.own_filters, READY_SECONDS):
        return
    if procfs.alive(helper.pid, helper.start_time) is None:
        raise HostError(
            "the pasta of its network ended at once",
            fix="box logs --console NAME shows its last words",
        )
    raise HostError("the pasta of its network did not get ready")


def confinement_of(vmm: Confinement, role: str) -> Confinement:
    """The jail of one of these helpers beside this VMM."""
    return wire_confinement(vmm, role, load_profile(PROFILES[role], False))


def read_one(helper: HelperRecord, vmm: Confinement, names: HostNames) -> Iterator[Reading]:
    """Its jail, read off the live process. Raises ProcessLookupError when it has ended."""
    want = confinement_of(vmm, helper.role)
    yield from read_helper(helper.pid, want, names, at_launch=helper.at_launch)
