"""KVM or emulation: what a Boxfile asks for against what a probe has proved.

A /dev/kvm that opens proves nothing, nor does a small guest that runs on it: some hosts offer a KVM
on which no stock kernel boots. So the probe boots the real guest kernel to the agent's hello, in
the same jail, and the verdict is remembered for this kernel, this VMM binary and this boot of the
host.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from reconcilers.procfs import host_boot_id
from reconcilers.smallfile import read_small
from specs.boxfile import Accel, Boxfile, Isolation
from specs.conditions import Reason
from specs.errors import BoxError, ChannelError, HostError

KVM_DEVICE = Path("/dev/kvm")


@dataclass(frozen=True)
class Verdict:
    """Whether KVM boots the guest kernel here, and how that is known."""

    usable: bool
    why: str


@dataclass(frozen=True)
class Choice:
    """The accelerator to use. `refused` is set, with its reason, when the Boxfile may not start
    here.
    """

    accel: str
    reason: Reason
    message: str
    refused: bool = False

    @property
    def hardware(self) -> bool:
        return self.accel == "kvm" and not self.refused


def needs_probe(box: Boxfile) -> bool:
    """Whether the choice depends on KVM."""
    return box.accel is not Accel.tcg


def choose(box: Boxfile, kvm: Verdict | None) -> Choice:
    """Pure: the accelerator for a Boxfile. `kvm` may be None when `needs_probe` says no."""
    emulated = "the CPU is emulated: for trying and testing, not a wall of hardware"
    if box.accel is Accel.tcg:
        return Choice("tcg", Reason.SoftwareEmulation, emulated)
    if kvm is not None and kvm.usable:
        return Choice("kvm", Reason.HardwareVirtualization, kvm.why)
    why = kvm.why if kvm is not None else "KVM was not probed"
    if box.accel is Accel.kvm:
        return Choice("kvm", Reason.KvmNotUsable, f"accel: kvm, but {why}", refused=True)
    if box.isolation is Isolation.strict:
        message = (
            f"isolation: strict needs hardware virtualization and {why}; "
            "write `accel: tcg` to accept emulation"
        )
        return Choice("tcg", Reason.EmulationRefused, message, refused=True)
    return Choice("tcg", Reason.SoftwareEmulation, f"{emulated} ({why})")


class KvmProbe:
    """Remembers the verdict in one file; boots a guest through `boot` only when nothing is
    remembered.
    """

    def __init__(
        self, memory: Path, boot: Callable[[], Awaitable[None]], seconds: int = 10
    ) -> None:
        """`seconds` is how long `boot` may take: a verdict of other patience does not count."""
        self._memory = memory
        self._boot = boot
        self._seconds = seconds
        self._known: dict[str, Verdict] = {}
        # All probes are one sandbox: a second one at the same time would kill the first.
        self._probing = asyncio.Lock()
        self._trouble = ""

    async def verdict(self, kernel_sha256: str, binary: Path) -> Verdict:
        """Whether KVM works for this kernel and VMM binary. A KVM that does not is no error."""
        try:
            os.stat(KVM_DEVICE)
        except OSError as error:
            return Verdict(False, f"{KVM_DEVICE}: {error.strerror}")
        facts = os.stat(binary)
        vmm = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        parts = (kernel_sha256, *vmm, host_boot_id(), self._seconds)
        key = hashlib.sha256(repr(parts).encode()).hexdigest()
        async with self._probing:
            if key not in self._known:
                verdict = self._remembered(key)
                if verdict is None:
                    verdict = await self._probe(key)
                    if verdict is None:
                        return Verdict(False, self._trouble)
                self._known[key] = verdict
        return self._known[key]

    def _remembered(self, key: str) -> Verdict | None:
        try:
            data = json.loads(read_small(self._memory))
            if data["key"] != key:
                return None
            return Verdict(data["usable"] is True, str(data["why"]))
        except (OSError, HostError, ValueError, KeyError, TypeError, RecursionError):
            return None

    async def _probe(self, key: str) -> Verdict | None:
        """Boot once and remember; None when the host, not KVM, kept the probe from running."""
        try:
            await self._boot()
        except ChannelError as error:
            verdict = Verdict(
                False, f"the guest kernel does not boot on {KVM_DEVICE} here ({error.message})"
            )
        except (BoxError, OSError) as error:
            # A full disk or a missing cgroup says nothing about KVM: try again at the next pass.
            what = error.message if isinstance(error, BoxError) else error
            self._trouble = f"KVM could not be probed ({what})"
            return None
        else:
            verdict = Verdict(True, "the guest kernel booted on KVM to the agent's hello")
        self._remember(key, verdict)
        return verdict

    def _remember(self, key: str, verdict: Verdict) -> None:
        temporary = self._memory.with_name(f".{self._memory.name}.{os.getpid()}")
        temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with open(temporary, "x") as file:  # a new file: no link under this name is written through
            file.write(json.dumps({"key": key, **asdict(verdict)}))
        temporary.rename(self._memory)
