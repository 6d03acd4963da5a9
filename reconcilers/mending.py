"""Puts back beside a running VMM what differs and can change in place: files, network, helpers, its
own limits.

Each wall by itself: one that the host refuses keeps no other from being put back. It must not touch
what only a new VMM can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from reconcilers import helpers, procfs, runtimefiles
from reconcilers.confinement import sharepolicy
from reconcilers.confinement.policy import Confinement
from reconcilers.confinement.readback import mend, read_vmm
from reconcilers.confinement.seccomp import load_profile
from reconcilers.launchrecord import LaunchRecord
from reconcilers.network.networks import Networks
from reconcilers.network.usernetworks import UserNetworks
from specs.boxfile import Boxfile
from specs.errors import BoxError
from specs.names import HostNames
from specs.reading import Reading


@dataclass(frozen=True)
class Running:
    """The VM that is mended: as it was started, and what its VMM's jail must be."""

    names: HostNames
    box: Boxfile
    record: LaunchRecord
    want: Confinement
    networks: Networks | UserNetworks


def mend_readings(vm: Running, readings: Sequence[Reading]) -> None:
    """Mends every one of `readings` (blocking). Raises the first BoxError or OSError, once all were
    tried.
    """
    failed: BoxError | OSError | None = None
    for work in _works(vm, readings):
        try:
            work()
        except (BoxError, OSError) as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _works(vm: Running, readings: Sequence[Reading]) -> Iterator[Callable[[], object]]:
    files = [each for each in readings if each.layer == runtimefiles.LAYER]
    yield partial(runtimefiles.mend_files, files)
    others = tuple(each for each in readings if each.layer != runtimefiles.LAYER)
    if any(each.layer == "network" and each.got != helpers.STOPPED for each in others):
        yield partial(vm.networks.raise_up, vm.names, vm.box)
    for helper in vm.record.helpers:
        own = helpers.faults_of(helper, others)
        if own:
            program = load_profile(sharepolicy.ROLE, False)
            yield partial(helpers.mend_one, helper, vm.want, program, vm.names, own)
        others = tuple(each for each in others if each not in own)
    if others:
        yield partial(_mend_live, vm, others)


def _mend_live(vm: Running, faults: Sequence[Reading]) -> None:
    procfs.require(vm.record.pid, vm.record.start_time)
    mend(vm.record.pid, vm.want, vm.names, faults)


def mend_vmm(record: LaunchRecord, want: Confinement, names: HostNames) -> None:
    """Put back on a live VMM whatever differs from `want` and can change in place."""
    found = read_vmm(record.pid, want, names, at_launch=record.at_launch)
    faults = tuple(each for each in found if not each.ok and each.mend == "in place")
    mend(record.pid, want, names, faults)
