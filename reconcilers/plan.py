"""Boxfile and observed facts in, ordered steps out. Pure: no clock, no file, no process.

An empty plan means converged. Anything unknown plans nothing, because a step taken on a guess may
remove what is alive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from reconcilers import steps
from reconcilers.facts import MIB, Disk, Network, Observed, Vmm
from reconcilers.steps import Step
from specs.boxfile import Boxfile
from specs.conditions import ConditionType, Reason
from specs.reading import Reading


@dataclass(frozen=True)
class Blocked:
    """Why nothing more can be done until something outside changes: the condition and reason to
    report.
    """

    condition: ConditionType
    reason: Reason
    message: str


@dataclass(frozen=True)
class Desired:
    """What one sandbox should be. `box` is None when it should be gone; `key` names the launch
    settings wanted, empty while it is not known what the base stands for.
    """

    box: Boxfile | None
    key: str = ""
    # The digest of the image in `key`, whatever its base comes to mean before its VM starts.
    image: str = ""
    # Deleting a sandbox whose Boxfile says `on_delete: erase` waits; until then its disk is left
    # alone.
    erase: bool | None = None
    # What the base means is looked up before another VM starts.
    look_up: bool = False
    # The VMM died unasked and the Boxfile says `restart: never`.
    suspended: bool = False
    # The Boxfile may not start here: no VM, but what it owns stays.
    keep_identity: bool = False
    # What makes it stop, as (field, desired, observed), when that is not its Boxfile.
    because: tuple[str, str, str] | None = None
    # The guest was silent so often that its VM is replaced.
    give_up_guest: bool = False
    # Why the changed Boxfile cannot be had here. `box` and `key` are then what the live VM was
    # started with: it is kept in order, and no other one is started.
    held: str = ""


@dataclass(frozen=True)
class Plan:
    """Steps in order, and what stands in the way of more."""

    steps: tuple[Step, ...] = ()
    blocked: Blocked | None = None

    @property
    def launches(self) -> bool:
        """Whether a VM is started by it."""
        return any(isinstance(step, steps.LaunchVmm) for step in self.steps)


def plan(desired: Desired, observed: Observed) -> Plan:
    """The steps that lead from `observed` to `desired`."""
    unknown = observed.unknown()
    if unknown:
        message = "; ".join(unknown)
        return Plan(blocked=Blocked(ConditionType.Ready, Reason.NotObserved, message))
    box = desired.box
    if box is None:
        return Plan(tuple(_down(observed, desired.because) + _gone(desired, observed)))
    if desired.held:
        return _as_started(box, desired, observed)
    if box.state == "stopped":
        return Plan(tuple(_down(observed)))
    if desired.suspended and observed.vmm is None:
        return Plan(tuple(_down(observed)))
    return _up(box, desired, observed)


def _as_started(box: Boxfile, desired: Desired, observed: Observed) -> Plan:
    """The VM that runs goes on in good order; without it, or a wall of it, nothing does."""
    blocked = Blocked(ConditionType.Ready, Reason.MountRefused, desired.held)
    lacking = _lacking(observed)
    if lacking is not None or not isinstance(observed.vmm, Vmm):
        found = _down(observed, desired.because)
        if lacking is not None and isinstance(observed.vmm, Vmm):
            found[0] = _without_wall(lacking, observed.vmm, desired)
        return Plan(tuple(found), blocked)
    found = [_kill(observed)] if observed.strays else []
    return Plan((*found, *_in_order(box, desired, observed.vmm, observed)), blocked)


def _down(observed: Observed, because: tuple[str, str, str] | None = None) -> list[Step]:
    found: list[Step] = []
    if isinstance(observed.vmm, Vmm):
        difference = because or ("vmm", "absent", "running")
        found.append(steps.StopVmm(*difference, graceful=not observed.vmm.frozen))
    if observed.strays:
        found.append(_kill(observed))
    found += _without_network(observed)
    if observed.cgroup is True:
        found.append(steps.RemoveCgroup("cgroup", "absent", "present", consequence=True))
    if observed.runtime:
        found.append(steps.RemoveRuntime("runtime", "absent", "present", consequence=True))
    return found


def _gone(desired: Desired, observed: Observed) -> list[Step]:
    found: list[Step] = []
    if isinstance(observed.disk, Disk) and desired.erase is not None:
        step = steps.EraseDisk if desired.erase else steps.SetDiskAside
        found.append(step("data", "absent", "present"))
    if observed.uid is not None and not desired.keep_identity:
        found.append(steps.ReleaseIdentity("identity", "released", str(observed.uid)))
    return found


def _up(box: Boxfile, desired: Desired, observed: Observed) -> Plan:
    if desired.look_up and (before := _looked_up_first(box, desired, observed)):
        return Plan((before,))
    found: list[Step] = []
    if observed.image is None:
        found.append(steps.BuildImage("image", box.base, "absent", base=box.base))
        if not desired.key:  # what the base stands for, and so what to start, is known afterwards
            return Plan(tuple(found))
    if observed.uid is None:
        found.append(
            steps.ClaimIdentity("identity", box.isolation, "none", isolation=box.isolation)
        )
    if observed.cgroup is False:
        found.append(steps.CreateCgroup("cgroup", "present", "absent"))
    if observed.strays:
        found.append(_kill(observed))
    if not isinstance(observed.vmm, Vmm):
        found += _network(box, observed)
    data, blocked = _data(box, observed)
    found += data
    if blocked is None:
        found += _vmm(box, desired, observed)
    return Plan(tuple(found), blocked)


def _looked_up_first(box: Boxfile, desired: Desired, observed: Observed) -> Step | None:
    """What comes before all else while nobody knows what another VM would start from."""
    if isinstance(observed.vmm, Vmm):
        if (fault := _lacking(observed)) is not None:
            return _without_wall(fault, observed.vmm, desired)  # a registry may take its time
        if _replacement(observed.vmm, desired, observed) is None:
            return None
    elif _data(box, observed)[1] is not None:
        return None  # nothing is started, so there is nothing to ask a registry for
    return steps.BuildImage(
        "image",
        box.base,
        "not looked up",
        consequence=True,
        base=box.base,
        again=True,
    )


def _kill(observed: Observed) -> Step:
    count = len(observed.strays)
    return steps.KillStrays("vmm", "no stray process", f"{count} stray", pids=observed.strays)


def _network(box: Boxfile, observed: Observed) -> list[Step]:
    """What a VMM that is about to start needs of it, or must not have."""
    network = observed.network
    if box.network == "none":
        return _without_network(observed)
    if isinstance(network, Network) and (fault := network.fault) is not None:
        name = f"network.{fault.item}" if network.present else "network"
        return [steps.RaiseNetwork(name, fault.want, fault.got)]
    return []


def _without_network(observed: Observed) -> list[Step]:
    if isinstance(observed.network, Network) and observed.network.present:
        return [steps.RemoveNetwork("network", "absent", "present", consequence=True)]
    return []


def _data(box: Boxfile, observed: Observed) -> tuple[list[Step], Blocked | None]:
    wanted = box.data.size_mib
    disk = observed.disk
    if not isinstance(disk, Disk):
        if observed.had_disk:
            return [], Blocked(
                ConditionType.DataReady,
                Reason.DiskLost,
                "its data disk is gone; put it back in disks/, or delete the sandbox, then start",
            )
        if box.fork_of is not None:
            field, begins = "data", f"that of {box.fork_of}"
            step = steps.ForkDisk(field, begins, "absent", parent=box.fork_of, size_mib=wanted)
            return [step], None
        return [steps.CreateDisk("data", f"{wanted} MiB", "absent", size_mib=wanted)], None
    found: list[Step] = []
    if not disk.private:
        seen = f"{disk.uid}:{disk.gid} {disk.mode:04o}"
        found.append(steps.MendDisk("data.owner", "the controller's, 0600", seen))
    have = disk.size // MIB
    if wanted < have:
        return found, Blocked(
            ConditionType.DataReady,
            Reason.DiskShrinkRefused,
            f"data.size_mib is {wanted} but the disk has {have} MiB, and a disk is never shrunk",
        )
    if wanted > have:
        found.append(
            steps.GrowDisk("data.size_mib", f"{wanted} MiB", f"{have} MiB", size_mib=wanted)
        )
    return found, None


def _vmm(box: Boxfile, desired: Desired, observed: Observed) -> list[Step]:
    key, vmm = desired.key, observed.vmm
    launch = steps.LaunchVmm("vmm", "running", "absent", key=key, image=desired.image)
    connect = steps.ConnectGuest("guest", "answering", "not connected", consequence=True)
    if not isinstance(vmm, Vmm):
        return [launch, connect]
    found: list[Step] = []
    stop = _replacement(vmm, desired, observed)
    if stop is not None:
        network = _network(box, observed)
        if box.network == "none" or _lacking(observed) is not None:
            found = [stop, *network]
        else:
            # A host that cannot give it the network says so while the former VM still runs.
            found = [*network, stop]
        return [*found, replace(launch, observed="being replaced", consequence=True), connect]
    found = _in_order(box, desired, vmm, observed)
    wanted = box.data.size_mib
    if observed.guest is not None and observed.guest.data_bytes < wanted * MIB:
        have = observed.guest.data_bytes // MIB
        found.append(
            steps.ResizeData(
                "data.guest_size", f"{wanted} MiB", f"{have} MiB", consequence=True, size_mib=wanted
            )
        )
    return found


def _in_order(box: Boxfile, desired: Desired, vmm: Vmm, observed: Observed) -> list[Step]:
    """What is done for a VMM that may go on."""
    found: list[Step] = []
    mendable = tuple(reading for reading in observed.faults if reading.mend == "in place")
    if mendable:
        first = mendable[0]
        found.append(
            steps.MendReadings(
                f"{first.layer}.{first.item}",
                first.want,
                first.got,
                unasked=vmm.key == desired.key,
                readings=mendable,
            )
        )
    if vmm.frozen:
        found.append(steps.ThawVmm("vmm.state", "running", "stopped by a signal"))
    if observed.paused:
        found.append(steps.ResumeVmm("vmm.cpus", "running", observed.paused))
    if observed.guest is None:
        # A frozen VMM answers nothing: that its guest is silent follows from it.
        found.append(
            steps.ConnectGuest(
                "guest",
                "answering",
                "not connected",
                consequence=vmm.frozen or bool(observed.paused),
            )
        )
        return found
    if box.network == "none":
        found += _without_network(observed)
    elif isinstance(observed.network, Network) and not mendable:
        told = observed.network.for_guest
        if told and observed.guest.network != told:
            found.append(
                steps.TellNetwork(
                    "network.guest", _on_one_line(told), _on_one_line(observed.guest.network)
                )
            )
    return found


def _on_one_line(told: str) -> str:
    return told.strip().replace("\n", " ") or "nothing"


def _lacking(observed: Observed) -> Reading | None:
    """The first wall that the VMM lacks and no live process can be given."""
    return next((each for each in observed.faults if each.mend != "in place"), None)


def _without_wall(fault: Reading, vmm: Vmm, desired: Desired) -> Step:
    """It is not asked to finish its work first; one whose directory was replaced lacks no wall."""
    name = f"{fault.layer}.{fault.item}"
    unasked = vmm.key == desired.key  # else its Boxfile may have asked for another wall
    moved = name.startswith("mounts[") and fault.item in ("host", "owner")
    graceful = moved and not vmm.frozen
    return steps.StopVmm(name, fault.want, fault.got, unasked=unasked, graceful=graceful)


def _replacement(vmm: Vmm, desired: Desired, observed: Observed) -> Step | None:
    """The stop that begins a replacement, or None when this VMM may go on."""
    if (fault := _lacking(observed)) is not None:
        return _without_wall(fault, vmm, desired)
    if vmm.key != desired.key or vmm.outdated:
        wanted, seen = desired.key[:12], vmm.key[:12]
        return steps.StopVmm("vmm.settings", wanted, seen, graceful=not vmm.frozen)
    if desired.give_up_guest and observed.guest is None and not (vmm.frozen or observed.paused):
        return steps.StopVmm("guest", "answering", "silent", graceful=False)
    return None
