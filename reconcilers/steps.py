"""The steps a plan is made of: small frozen values that describe themselves and say how they are
undone.

They only say what is to be done; `act.py` does it. Each is idempotent, so a pass that died half-way
is simply planned again. `field`, `desired` and `observed` are the difference that called for the
step, which is what drift records show.
"""

from __future__ import annotations

from dataclasses import dataclass

from specs.reading import Reading


@dataclass(frozen=True)
class Step:
    """One thing to do. A `consequence` follows from another step of the same plan and is no drift
    of its own. `unasked`: no change of a Boxfile can be the reason, so it is drift even when nobody
    knows what converged last, as after a restart.
    """

    field: str
    desired: str
    observed: str
    consequence: bool = False
    unasked: bool = False

    def describe(self) -> str:
        """What this step does, in the infinitive, for people."""
        raise NotImplementedError

    def because(self) -> str:
        """The difference that calls for it, for people."""
        return f"{self.field}: want {self.desired}, saw {self.observed}"

    @property
    def egress(self) -> bool:
        """Whether a changed egress could be all that it is about."""
        return False

    def undo(self) -> Step | None:
        """The step that takes this one back when a later step of the same pass fails, if it should
        be.
        """
        return None


IMAGE_STEPS = ("build the root image", "look up ")
"""How the descriptions of steps begin that are about the image."""


@dataclass(frozen=True)
class BuildImage(Step):
    """`again`: what the base means is looked up anew, also when its image is here."""

    base: str = ""
    again: bool = False

    def describe(self) -> str:
        if self.again:
            return f"look up {self.base}, and build its root image if it is another one"
        return f"build the root image of {self.base}"


@dataclass(frozen=True)
class ClaimIdentity(Step):
    isolation: str = ""

    def describe(self) -> str:
        if self.isolation == "standard":
            return "use the shared unprivileged UID of standard sandboxes"
        return "claim a host UID of its own"

    def undo(self) -> Step | None:
        return ReleaseIdentity("identity", "released", "claimed")


@dataclass(frozen=True)
class ReleaseIdentity(Step):
    def describe(self) -> str:
        return "release its host UID"


@dataclass(frozen=True)
class CreateCgroup(Step):
    def describe(self) -> str:
        return "create its cgroup with its limits"

    def undo(self) -> Step | None:
        return RemoveCgroup("cgroup", "absent", "present")


@dataclass(frozen=True)
class RemoveCgroup(Step):
    def describe(self) -> str:
        return "remove its cgroup"


@dataclass(frozen=True)
class RaiseNetwork(Step):
    def describe(self) -> str:
        return "set up its network, rules first"

    def undo(self) -> Step | None:
        if self.field != "network":
            return None  # it was there before, and a VM may be in it
        return RemoveNetwork("network", "absent", "set up in this pass")


@dataclass(frozen=True)
class RemoveNetwork(Step):
    def describe(self) -> str:
        return "remove its network"


@dataclass(frozen=True)
class CreateDisk(Step):
    size_mib: int = 0

    def describe(self) -> str:
        return f"create a data disk of {self.size_mib} MiB"

    def undo(self) -> Step | None:
        return EraseDisk("data", "absent", "created in this pass")


@dataclass(frozen=True)
class ForkDisk(Step):
    parent: str = ""
    size_mib: int = 0

    def describe(self) -> str:
        return f"branch its data from {self.parent}"

    def undo(self) -> Step | None:
        return EraseDisk("data", "absent", "branched in this pass")


@dataclass(frozen=True)
class GrowDisk(Step):
    size_mib: int = 0

    def describe(self) -> str:
        return f"grow the data disk to {self.size_mib} MiB"


@dataclass(frozen=True)
class MendDisk(Step):
    def describe(self) -> str:
        return "give the disk file back its owner and mode"


@dataclass(frozen=True)
class SetDiskAside(Step):
    def describe(self) -> str:
        return "keep the data disk, moved aside"


@dataclass(frozen=True)
class EraseDisk(Step):
    def describe(self) -> str:
        return "erase the data disk"


@dataclass(frozen=True)
class KillStrays(Step):
    pids: tuple[int, ...] = ()

    def describe(self) -> str:
        return f"kill stray processes in its name ({', '.join(map(str, self.pids))})"


@dataclass(frozen=True)
class StopVmm(Step):
    """Stop the VMM; `graceful` asks the guest to sync /data and power off first."""

    graceful: bool = True

    def describe(self) -> str:
        return "shut the guest down" if self.graceful else "kill the VMM"


@dataclass(frozen=True)
class LaunchVmm(Step):
    key: str = ""
    image: str = ""  # its digest, which is in `key`

    def describe(self) -> str:
        return "start a confined VMM"

    def undo(self) -> Step | None:
        return StopVmm("vmm", "absent", "started in this pass", graceful=False)


@dataclass(frozen=True)
class ThawVmm(Step):
    def describe(self) -> str:
        return "let the frozen VMM run on (SIGCONT)"


@dataclass(frozen=True)
class ResumeVmm(Step):
    def describe(self) -> str:
        return "let the paused virtual CPUs run on"


@dataclass(frozen=True)
class MendReadings(Step):
    readings: tuple[Reading, ...] = ()

    def describe(self) -> str:
        return "put back " + ", ".join(f"{r.layer} {r.item}" for r in self.readings)

    @property
    def egress(self) -> bool:
        return all(reading.layer == "network" for reading in self.readings)


@dataclass(frozen=True)
class ConnectGuest(Step):
    def describe(self) -> str:
        return "open the guest's channel"


@dataclass(frozen=True)
class TellNetwork(Step):
    def describe(self) -> str:
        return "tell the guest its addresses, routes and MTU"


@dataclass(frozen=True)
class ResizeData(Step):
    size_mib: int = 0

    def describe(self) -> str:
        return f"let the guest take the disk's {self.size_mib} MiB"


@dataclass(frozen=True)
class RemoveRuntime(Step):
    def describe(self) -> str:
        return "remove its sockets and launch record"
