"""What the launching side itself has: whether this process can build a jail at all.

For `box doctor` and for the first lines of a log. It changes nothing, and nothing is weakened
because of what it finds: a launch that lacks something fails at its layer.
"""

from __future__ import annotations

import os

from reconcilers.confinement import procfile
from reconcilers.confinement.capabilities import NUMBERS
from reconcilers.confinement.cgrouptree import host_tree
from specs.reading import Reading

# what the launcher and readback use
NEEDED = (
    "CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SYS_PTRACE",
    "CAP_SYS_ADMIN",
)  # fmt: skip


def launching_side() -> tuple[Reading, ...]:
    """Readings of the layer `launcher`: capabilities, no_new_privs, seccomp, cgroup controllers."""
    status = procfile.fields("/proc/self/status")
    effective = int(status["CapEff"], 16)
    root = os.geteuid() == 0  # others have them in a user namespace, and nobody's program to read
    lacking = [name for name in NEEDED if root and not effective >> NUMBERS[name] & 1]
    filtered = status["Seccomp"] if root else "0"
    missing = host_tree().missing
    return (
        _reading("capabilities", "none missing", ", ".join(lacking), "CapEff", not lacking),
        _no_new_privs(status["NoNewPrivs"], root),
        # a filter over us would hide the VMM's own program from readback (ptrace(2))
        _reading("seccomp", "0", filtered, "Seccomp", filtered == "0"),
        Reading(
            "launcher", "cgroup controllers", "none missing", ", ".join(missing) or "none missing",
            not missing, "/proc/self/mountinfo", "live", "none",
        ),
    )  # fmt: skip


def _no_new_privs(value: str, root: bool) -> Reading:
    """Root needs no set-user-ID helper, so it is named and harmless; for others it is not."""
    said = {"0": "0", "1": "1: set-user-ID helpers (newuidmap) cannot work"}.get(value, value)
    said += "; root needs none" if root and value == "1" else ""
    ok = root or value == "0"
    return _reading("NoNewPrivs", "0, or 1 as root", said, "NoNewPrivs", ok)


def _reading(item: str, want: str, got: str, field: str, ok: bool) -> Reading:
    source = f"/proc/self/status {field}"
    return Reading("launcher", item, want, got or want, ok, source, "live", "none")
