"""Turns what was observed into conditions. Pure: the caller gives the time."""

from __future__ import annotations

from controller import driftbook
from controller.entry import Entry
from reconcilers.facts import Disk, Image, Observed, Vmm
from reconcilers.plan import Blocked
from reconcilers.steps import IMAGE_STEPS
from specs.conditions import Condition, ConditionType, Reason, Status
from specs.recipe import steps

Answer = tuple[Status, Reason, str]
NOT_OBSERVED: Answer = (Status.unknown, Reason.NotObserved, "")


def judge(entry: Entry, observed: Observed, blocked: Blocked | None, now: str) -> list[Condition]:
    """Every condition of one sandbox, at the generation of its record."""
    answers = {
        ConditionType.Valid: _valid(entry),
        ConditionType.ImageReady: _image(entry, observed),
        ConditionType.DataReady: _data(observed, blocked),
        ConditionType.Confined: _confined(entry, observed),
        ConditionType.HardwareIsolated: _hardware(entry, observed),
        ConditionType.KernelVerified: _kernel(entry, observed),
        ConditionType.Ready: _ready(entry, observed, blocked),
        ConditionType.Drifted: _drifted(entry),
    }
    return [
        Condition(kind, status, reason, message, entry.record.generation, now)
        for kind, (status, reason, message) in answers.items()
    ]


def _valid(entry: Entry) -> Answer:
    status = Status.true if entry.verdict.ok else Status.false
    return status, entry.verdict.reason, entry.verdict.message


def _running(entry: Entry) -> bool:
    """Whether it is meant to run here and now."""
    return entry.box is not None and entry.box.state == "running" and not entry.refused


def _image(entry: Entry, observed: Observed) -> Answer:
    failed = entry.failure is not None and entry.failure.step.startswith(IMAGE_STEPS)
    if isinstance(observed.image, Image) and not failed:
        return Status.true, Reason.Converged, f"sha256 {observed.image.sha256}"
    if not _running(entry):
        return Status.unknown, Reason.NotObserved, "not needed while it does not run"
    if entry.failure is not None and failed:
        return Status.false, Reason.BuildFailed, entry.failure.message
    base = entry.box.base if entry.box is not None else ""
    here = base.startswith(("builtin:", "rootfs:", "oci-archive:"))
    count = len(steps(entry.box)) if entry.box is not None else 0
    more = f", and {count} step{'s' if count > 1 else ''} on it" if count else ""
    return Status.false, Reason.Building, f"{'building' if here else 'pulling'} {base}{more}"


def _data(observed: Observed, blocked: Blocked | None) -> Answer:
    if blocked is not None and blocked.condition is ConditionType.DataReady:
        return Status.false, blocked.reason, blocked.message
    if isinstance(observed.disk, Disk):
        return (
            Status.true,
            Reason.DiskPresent,
            f"{observed.disk.size >> 20} MiB, {observed.disk.format}",
        )
    return Status.unknown, Reason.NotObserved, "made when it first starts"


def _confined(entry: Entry, observed: Observed) -> Answer:
    if isinstance(observed.vmm, Vmm):
        faults = observed.faults
        if not faults:
            count = len(observed.vmm.readings)
            return Status.true, Reason.AllLayersRead, f"{count} readings as wanted"
        text = "; ".join(f"{f.layer} {f.item}: want {f.want}, got {f.got}" for f in faults[:5])
        return Status.false, Reason.LayerMissing, text
    if entry.failure is not None and entry.failure_layer:
        message = f"{entry.failure_layer}: {entry.failure.message}"
        return Status.false, Reason.LayerFailed, message
    return NOT_OBSERVED


def _hardware(entry: Entry, observed: Observed) -> Answer:
    choice = entry.choice
    if choice is None or entry.box is None or entry.box.state != "running":
        return NOT_OBSERVED
    if choice.hardware:
        status = Status.true if isinstance(observed.vmm, Vmm) else Status.unknown
        return status, choice.reason, choice.message
    return Status.false, choice.reason, choice.message


def _kernel(entry: Entry, observed: Observed) -> Answer:
    if entry.kernel_differs:
        return Status.false, Reason.KernelDiffers, entry.kernel_differs
    if observed.guest is not None:
        # The channel is only kept when the proofs held, so a connected guest is a proven one.
        return Status.true, Reason.KernelMatches, f"{observed.guest.kernel}, not the host's"
    if isinstance(observed.vmm, Vmm):
        return Status.unknown, Reason.GuestSilent, "the guest does not answer"
    return NOT_OBSERVED


def _ready(entry: Entry, observed: Observed, blocked: Blocked | None) -> Answer:
    box = entry.box
    if box is None:
        if entry.removing:
            return Status.false, Reason.Deleting, "its Boxfile is gone"
        return Status.false, entry.verdict.reason, "there is no good Boxfile for it yet"
    if entry.run is not None:
        return Status.false, Reason.Stopped, "a VM is there for one command of box run"
    if box.state == "stopped":
        if isinstance(observed.vmm, Vmm):  # it has its disk open, and others wait for that
            failed = entry.failure.message if entry.failure is not None else ""
            return Status.false, Reason.Stopping, failed or "state: stopped; its VM is being ended"
        return Status.false, Reason.Stopped, "state: stopped"
    return _up(entry, observed, blocked)


def why_down(entry: Entry, observed: Observed, blocked: Blocked | None) -> str:
    """What stands against a VM that is wanted and not there."""
    if entry.over_ceiling:
        return entry.verdict.message
    return _up(entry, observed, blocked)[2]


def _up(entry: Entry, observed: Observed, blocked: Blocked | None) -> Answer:
    if entry.choice is not None and entry.choice.refused:
        return Status.false, entry.choice.reason, entry.choice.message
    if entry.refused_mounts:
        by_policy = any(each.by_policy for each in entry.refused_mounts)
        reason = Reason.RefusedByPolicy if by_policy else Reason.MountRefused
        return Status.false, reason, "; ".join(map(str, entry.refused_mounts))
    replacing = isinstance(observed.vmm, Vmm) and observed.vmm.outdated
    if observed.guest is not None and not (observed.faults or replacing) and _thawed(observed):
        return Status.true, Reason.GuestReady, ""
    if blocked is not None:
        return Status.false, blocked.reason, blocked.message
    if entry.record.suspended:
        return Status.false, Reason.VmmExited, f"the VMM ended ({entry.exited}); restart: never"
    if entry.failure is not None:
        return Status.false, _failure_reason(entry), entry.failure.message
    return Status.false, Reason.Starting, "a changed Boxfile replaces its VM" if replacing else ""


def _thawed(observed: Observed) -> bool:
    return isinstance(observed.vmm, Vmm) and not observed.vmm.frozen


def _failure_reason(entry: Entry) -> Reason:
    if entry.out_of_memory:
        return Reason.OutOfMemory
    if entry.failure_layer:
        return Reason.LayerFailed
    return Reason.BackingOff


def _drifted(entry: Entry) -> Answer:
    still_open = driftbook.is_open(entry.drift)
    if still_open:
        text = "; ".join(f"{d.field}: want {d.desired}, saw {d.observed}" for d in still_open)
        return Status.true, Reason.DriftFound, text
    if entry.drift:
        last = entry.drift[-1]
        return Status.false, Reason.DriftCorrected, f"{last.field}: {last.action}"
    return Status.false, Reason.NoDrift, ""


def not_as_declared(entry: Entry) -> str:
    """Why a sandbox is not what its Boxfile says; empty when it is."""
    if not entry.verdict.ok:
        return f"{entry.verdict.reason}: {entry.verdict.message}"
    if entry.failure is not None:
        return entry.failure.message
    if entry.removing:
        return "its data is erased a minute after its Boxfile vanished"
    for kind in (ConditionType.DataReady, ConditionType.Ready):
        found = entry.conditions.get(kind)
        if (
            found is not None
            and found.status is Status.false
            and found.reason is not Reason.Stopped
        ):
            return f"{found.reason}: {found.message}"
    return ""
