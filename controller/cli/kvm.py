"""Whether hardware virtualization can work here, as far as that is known without booting anything.

A quick look only: what decides is the guest kernel booting, when a sandbox needs it. It must not
open the device in a way that changes anything.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

PROBE = "kvm-probe.json"


def obstacle(kernels: Path) -> str:
    """Why KVM cannot work here; empty when nothing is known against it. `kernels` is the home's
    folder of that name, where the controller remembers what came of trying.
    """
    from reconcilers.accel import KVM_DEVICE

    if not KVM_DEVICE.exists():
        return f"{KVM_DEVICE} does not exist"
    if not _may_be_opened():
        return f"{KVM_DEVICE} may not be opened"
    probed = tried(kernels)
    if probed is not None:
        usable, why = probed
        return "" if usable else f"when last tried: {why}"
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    if " vmx " not in flags and " svm " not in flags:
        return f"{KVM_DEVICE} exists, but the CPU offers neither vmx nor svm"
    return ""


def _may_be_opened() -> bool:
    """By a VMM: an ordinary user's strict one is in no group but the one that is mapped for it."""
    from reconcilers.accel import KVM_DEVICE
    from reconcilers.confinement import ordinary
    from specs.errors import ConfinementError

    user = ordinary.current()
    if user is None:
        return os.access(KVM_DEVICE, os.R_OK | os.W_OK)
    try:
        ordinary.kvm_group(user, True)
    except ConfinementError:
        return False
    return True


def tried(kernels: Path) -> tuple[bool, str] | None:
    """What the controller remembers of trying KVM; None when it has not tried."""
    try:
        memory = json.loads((kernels / PROBE).read_bytes())
        return memory["usable"] is True, str(memory["why"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
