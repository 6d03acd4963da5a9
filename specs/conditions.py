"""What is true about a sandbox, as conditions with documented reasons, never as a single phase.

A condition carries the generation it was judged at and the moment its answer last changed. It must
not read a clock: the caller gives every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class ConditionType(StrEnum):
    """The questions asked about every sandbox."""

    Valid = "Valid"  # the newest text of the Boxfile is understood and allowed
    ImageReady = "ImageReady"  # the read-only root image is built and intact
    DataReady = "DataReady"  # the /data disk exists, has its size and its owner
    Confined = "Confined"  # every layer of the jail was read off the live VMM
    HardwareIsolated = "HardwareIsolated"  # the CPU's virtualization separates guest and host
    KernelVerified = "KernelVerified"  # the guest runs the kernel that was handed to its VMM
    Ready = "Ready"  # the agent answers and commands can run
    Drifted = "Drifted"  # the host differs, or differed in the last pass, from the Boxfile


class Status(StrEnum):
    """Unknown is an answer of its own: it is never read as False."""

    true = "True"
    false = "False"
    unknown = "Unknown"


class Reason(StrEnum):
    """Why a condition has its status; one comment each, and no other words are used."""

    # Valid
    Accepted = "Accepted"  # the newest text is what is being converged to
    InvalidBoxfile = "InvalidBoxfile"  # the text has mistakes; the last good one stays in force
    RefusedByPolicy = "RefusedByPolicy"  # policy.toml forbids what the text asks for
    Conflict = "Conflict"  # two files declare this name; the recorded one stays in force
    SourceMissing = "SourceMissing"  # the watched folder is missing or not the same one: held
    # ImageReady, DataReady
    Converged = "Converged"  # nothing is left to do
    Building = "Building"  # the image is being built
    BuildFailed = "BuildFailed"  # the build stopped; the failure names step and command
    DiskPresent = "DiskPresent"  # the recorded disk is there with its owner and size
    DiskLost = "DiskLost"  # a disk that was recorded is gone; a new one is not made silently
    DiskShrinkRefused = "DiskShrinkRefused"  # size_mib is below the disk's size; disks only grow
    # Confined
    AllLayersRead = "AllLayersRead"  # every layer was read back as wanted
    LayerMissing = "LayerMissing"  # a live VMM lacks a layer; it is mended or replaced
    LayerFailed = "LayerFailed"  # a layer could not be applied, so the VM was not started
    # HardwareIsolated
    HardwareVirtualization = "HardwareVirtualization"  # KVM, proven by booting the guest kernel
    SoftwareEmulation = "SoftwareEmulation"  # emulated CPU: for trying and testing
    KvmNotUsable = "KvmNotUsable"  # KVM was asked for and the probe's guest did not boot
    EmulationRefused = "EmulationRefused"  # strict isolation without `accel: tcg` written
    # KernelVerified
    KernelMatches = "KernelMatches"  # reported kernel is the one handed over, not the host's
    KernelDiffers = "KernelDiffers"  # the guest reports another kernel, or the host's own
    GuestSilent = "GuestSilent"  # the agent does not answer
    # Ready
    GuestReady = "GuestReady"  # the agent answered its last ping
    Starting = "Starting"  # the VM is on its way up
    Stopping = "Stopping"  # `state: stopped`, and its VM has not ended yet
    Stopped = "Stopped"  # `state: stopped`, as asked for
    Deleting = "Deleting"  # its Boxfile is gone, and the rest of it goes, or waits to be erased
    MountRefused = "MountRefused"  # a host directory is missing or may not be shared
    BackingOff = "BackingOff"  # the last attempt failed; the next one has a time
    VmmExited = "VmmExited"  # the VMM ended unasked
    OutOfMemory = "OutOfMemory"  # the host killed the VMM at its memory limit
    # Drifted
    NoDrift = "NoDrift"  # host and Boxfile agreed in the last full pass
    DriftFound = "DriftFound"  # a difference is open
    DriftCorrected = "DriftCorrected"  # a difference was found and mended in the last pass
    # any
    NotObserved = "NotObserved"  # not looked at yet, or looking failed


@dataclass(frozen=True, slots=True)
class Condition:
    """One answer. `since` is an ISO-8601 UTC time, `generation` the one of the Boxfile judged."""

    type: ConditionType
    status: Status
    reason: Reason
    message: str
    generation: int
    since: str


def merge(
    old: Mapping[ConditionType, Condition], new: Iterable[Condition]
) -> dict[ConditionType, Condition]:
    """`old` updated by `new`; `since` stays while status and reason stay the same."""
    merged = dict(old)
    for condition in new:
        before = old.get(condition.type)
        same = before and (before.status, before.reason) == (condition.status, condition.reason)
        merged[condition.type] = (
            replace(condition, since=before.since) if before and same else condition
        )
    return merged
