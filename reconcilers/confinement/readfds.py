"""Readings of a VMM's open descriptors: what it was given, what it opened inside, nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from reconcilers.confinement import atlaunch, procfile
from specs.reading import Reading

# what QEMU makes for itself; none of them reaches outside the process
_OWN_KINDS = {
    "eventfd", "eventpoll", "signalfd", "timerfd", "kvm-vm", "kvm-vcpu", "kvm-vcpu-stats",
    "kvm-vm-stats", "kvm-device",
}  # fmt: skip
_HARMLESS = ("socket", "pipe", "memfd")
_ATTEMPTS = 5  # a descriptor number may be closed and used again between two reads


def read_descriptors(proc: str, known: Mapping[tuple[str, str], Reading]) -> Iterator[Reading]:
    """Regular files and devices against the launch's own; other kinds against what QEMU makes."""
    path = f"{proc}/fd"
    recorded = known.get(atlaunch.FILES_KEY)
    given = set(recorded.want.split(", ")) if recorded else set()
    own_root = _mount_ids(proc)
    foreign: set[str] = set()
    strange: set[str] = set()
    for number in os.listdir(path):
        kind, detail = _settled(proc, number, given, own_root)
        if kind in ("file", "device"):
            foreign.add(f"{kind} {detail}")
        elif kind == "anonymous" and detail not in _OWN_KINDS:
            strange.add(detail)
        elif kind not in ("", "anonymous", *_HARMLESS):
            strange.add(f"{kind} {detail}")
    want = recorded.want if recorded else "recorded by the launch"
    got = (
        want if recorded and not foreign else f"{', '.join(sorted(foreign))} from outside its root"
    )
    yield Reading("descriptors", "files", want, got, got == want, path, "live", "replace")
    others = ", ".join(sorted(strange))
    yield Reading("descriptors", "of other kinds", "", others, not others, path, "live", "replace")


def _settled(proc: str, number: str, given: set[str], own_root: set[str]) -> tuple[str, str]:
    """(kind, detail); the kind is empty for one that is closed, was given, or lies in its root."""
    kind = detail = ""
    for _ in range(_ATTEMPTS):
        try:
            kind, detail = procfile.kind_of(f"{proc}/fd/{number}")
            if kind not in ("file", "device"):
                return kind, detail
            if f"{kind} {detail}" in given:
                return "", ""
            facts = procfile.fields(f"{proc}/fdinfo/{number}")
            again = procfile.kind_of(f"{proc}/fd/{number}")
        except FileNotFoundError:
            return "", ""  # closed since it was listed
        if again == (kind, detail):
            return ("", "") if facts.get("mnt_id") in own_root else (kind, detail)
    return kind, detail


def _mount_ids(proc: str) -> set[str]:
    """What it opened in its own read-only root (a library, say) lies on one of these mounts."""
    lines = procfile.read(f"{proc}/mountinfo").decode("utf-8", "replace").splitlines()
    return {line.partition(" ")[0] for line in lines}
