"""What `box verify` proves of a running VM's kernel and CPU, beyond what every command costs.

Everything here is read off the live VMM from outside, except where a proof says that the guest
said it: that is compared, and proves nothing by itself. It must not change anything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from agent.client import Hello
from reconcilers import backend, guest, procfs
from reconcilers.confinement.inside import read_held_of
from reconcilers.confinement.policy import Confinement
from reconcilers.guest import Proof
from reconcilers.launchrecord import LaunchRecord
from specs.errors import HostError

SILENT = "nothing: the agent does not answer"
_READ_AT_ONCE = 1 << 20


def from_outside(record: LaunchRecord, want: Confinement, *, cpus: int) -> tuple[Proof, ...]:
    """The process, its program, what runs the guest's instructions, and the files it booted.

    Reads and hashes some 50 MB; for a thread. What cannot be read is a proof that is not ok.
    """
    return (
        *guest.prove_process(record),
        _virtualization(record, want, cpus),
        _file(record, "kernel image", backend.KERNEL_PATH, record.kernel_sha256),
        _file(record, "initramfs", backend.INITRD_PATH, record.initramfs_sha256),
    )


def from_the_guest(record: LaunchRecord, hello: Hello | None) -> tuple[Proof, ...]:
    """Kernel release and boot id as the guest tells them, beside what was started and the host's
    own; None is a guest that does not answer."""
    if hello is not None:
        return guest.prove_kernel(record, hello)
    return tuple(
        Proof(item, want, SILENT, False, "the agent's channel")
        for item, want in (
            ("kernel release", record.kernel_release),
            ("boot id", record.guest_boot_id or "one of its own"),
        )
    )


def _virtualization(record: LaunchRecord, want: Confinement, cpus: int) -> Proof:
    """KVM gives a descriptor for the machine and one for each CPU; an emulator has none."""
    source = f"/proc/{record.pid}/fd"
    wanted = _described(("kvm-vm", *["kvm-vcpu"] * cpus) if want.kvm else ())
    try:
        got = _described(read_held_of(record.pid, want, ()).kvm)
    except (OSError, HostError) as error:
        return Proof("virtualization", wanted, f"not readable: {error}", False, source)
    return Proof("virtualization", wanted, got, got == wanted, source)


def _described(kinds: Sequence[str]) -> str:
    if not kinds:
        return "emulated: no KVM descriptor"
    return f"{kinds.count('kvm-vm')} kvm-vm, {kinds.count('kvm-vcpu')} kvm-vcpu"


def _file(record: LaunchRecord, item: str, inside: str, want: str) -> Proof:
    """What the VMM's own read-only root holds under this name: the very file that was handed over,
    hashed again. At the launch its descriptor was hashed."""
    path = f"/proc/{record.pid}/root{inside}"
    digest = hashlib.sha256()
    try:
        # a mount of that root: the jail makes no link there, so none is followed
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            while part := file.read(_READ_AT_ONCE):
                digest.update(part)
    except OSError as error:
        return Proof(item, want, f"not readable: {error.strerror}", False, path)
    # the name leads to another process's root once the PID is another's
    if procfs.alive(record.pid, record.start_time) is None:
        return Proof(item, want, "gone", False, path)
    got = digest.hexdigest()
    return Proof(item, want, got, got == want, path)
