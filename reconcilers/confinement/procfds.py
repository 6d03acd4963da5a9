"""What /proc/PID/fd and /proc/PID/environ hold, as plain facts.

Read by whoever may: root and the process's own user directly, an ordinary user's controller through
`inside`, whose reader process imports this module. So it needs the standard library and `procfile`
alone, and it judges nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import cache
from typing import NamedTuple

from reconcilers.confinement import procfile

# what QEMU makes for itself; none of them reaches outside the process
_OWN_KINDS = {
    "eventfd", "eventpoll", "signalfd", "timerfd", "kvm-vm", "kvm-vcpu", "kvm-vcpu-stats",
    "kvm-vm-stats", "kvm-device",
}  # fmt: skip
_HARMLESS = ("socket", "pipe", "memfd")
_ATTEMPTS = 5  # a descriptor number may be closed and used again between two reads


class Held(NamedTuple):
    """`foreign`: files and devices that were neither given nor opened in its own root. `strange`:
    descriptors of kinds it has no use for. `environment` in bytes. `kvm`: "kvm-vm" for each machine
    and "kvm-vcpu" for each CPU that the kernel's KVM runs for it."""

    foreign: tuple[str, ...]
    strange: tuple[str, ...]
    environment: int
    kvm: tuple[str, ...]


def read_held(pid: int, given: Collection[str]) -> Held:
    """`given` are the files and devices of the launch, as "file DEV:INODE" or "device MAJ:MIN".

    "mount ID" among them is a mount of its root that its /proc may not show: a helper that changed
    its root since shows one alone.
    """
    proc = f"/proc/{pid}"

    @cache
    def own_root() -> set[str]:
        """Asked for only when a file was not given: rarely after the start."""
        helper = {each.partition(" ")[2] for each in given if each.startswith("mount ")}
        return _mount_ids(proc) | helper

    foreign: set[str] = set()
    strange: set[str] = set()
    kvm: list[str] = []
    for number in os.listdir(f"{proc}/fd"):
        kind, detail = _settled(proc, number, given, own_root)
        if kind == "anonymous":
            detail = detail.partition(":")[0]  # "kvm-vcpu:0" since Linux 4.19
        if detail in ("kvm-vm", "kvm-vcpu"):
            kvm.append(detail)
        if kind in ("file", "device"):
            foreign.add(f"{kind} {detail}")
        elif kind == "anonymous" and detail not in _OWN_KINDS:
            strange.add(detail)
        elif kind not in ("", "anonymous", *_HARMLESS):
            strange.add(f"{kind} {detail}")
    environment = procfile.read(f"{proc}/environ").strip(b"\0")
    found = (tuple(sorted(foreign)), tuple(sorted(strange)), len(environment), tuple(sorted(kvm)))
    return Held(*found)


def _settled(
    proc: str, number: str, given: Collection[str], own_root: Callable[[], set[str]]
) -> tuple[str, str]:
    """(kind, detail); the kind is empty for one that is closed, was given, or lies in its root."""
    kind = detail = ""
    for _ in range(_ATTEMPTS):
        try:
            kind, detail = procfile.kind_of(f"{proc}/fd/{number}")
            if kind in ("anonymous", *_HARMLESS):
                return kind, detail
            if f"{kind} {detail}" in given:
                return "", ""
            facts = procfile.fields(f"{proc}/fdinfo/{number}")
            again = procfile.kind_of(f"{proc}/fd/{number}")
        except FileNotFoundError:
            return "", ""  # closed since it was listed
        if again == (kind, detail):
            return ("", "") if facts.get("mnt_id") in own_root() else (kind, detail)
    return kind, detail


def _mount_ids(proc: str) -> set[str]:
    """What it opened in its own read-only root (a library, say) lies on one of these mounts."""
    lines = procfile.read(f"{proc}/mountinfo").decode("utf-8", "replace").split("\n")[:-1]
    return {line.partition(" ")[0] for line in lines}
