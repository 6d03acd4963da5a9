"""What the descriptors and the environment of a process hold, as plain facts.

Root and the process's own user read /proc/PID/fd and /proc/PID/environ. Whoever owns the user
namespace of a process of another identity may not open these two, but may have a copy of each
descriptor: that is how an ordinary user's controller looks. Where it is refused them, the process
of `insidereader` reads the two, which imports this module. So this needs the standard library,
`procfile` and `syscalls` alone, and it judges nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from functools import cache
from typing import NamedTuple

from reconcilers.confinement import procfile, syscalls

# what QEMU makes for itself; none of them reaches outside the process
_OWN_KINDS = {
    "eventfd", "eventpoll", "signalfd", "timerfd", "kvm-vm", "kvm-vcpu", "kvm-vcpu-stats",
    "kvm-vm-stats", "kvm-device",
}  # fmt: skip
_HARMLESS = ("socket", "pipe", "memfd")
_ATTEMPTS = 5  # a descriptor number may be closed and used again between two reads
_ENV_START, _ENV_END = 50 - 3, 51 - 3  # fields of /proc/PID/stat, which begin with the third


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
    its root since shows one alone. Raises OSError.
    """
    proc = f"/proc/{pid}"
    own_root = _root_of(proc, given)
    found = _Sorted()
    for number in os.listdir(f"{proc}/fd"):
        found.add(*_settled(proc, number, given, own_root))
    return found.held(len(procfile.read(f"{proc}/environ").strip(b"\0")))


def read_copies(pid: int, given: Collection[str]) -> Held:
    """The same without opening what its /proc shows to its own user alone.

    A copy is closed at once and does nothing to the process. Raises OSError: PermissionError, or
    ENOSYS, where the kernel gives none.
    """
    proc = f"/proc/{pid}"
    own_root = _root_of(proc, given)
    found = _Sorted()
    process = os.pidfd_open(pid)
    try:
        for number in os.listdir(f"{proc}/fdinfo"):
            found.add(*_of_copy(process, int(number), given, own_root))
        start, end = map(int, procfile.stat_fields(f"{proc}/stat")[_ENV_START : _ENV_END + 1])
    finally:
        os.close(process)
    if not start:  # so it is shown to who may not know
        raise PermissionError(errno.EACCES, "the kernel hides its environment", f"{proc}/stat")
    return found.held(max(end - start - 1, 0))  # without the zero that ends it


class _Sorted:
    """Descriptors by what they mean."""

    def __init__(self) -> None:
        self._foreign: set[str] = set()
        self._strange: set[str] = set()
        self._kvm: list[str] = []

    def add(self, kind: str, detail: str) -> None:
        if kind == "anonymous":
            detail = detail.partition(":")[0]  # "kvm-vcpu:0" since Linux 4.19
        if detail in ("kvm-vm", "kvm-vcpu"):
            self._kvm.append(detail)
        if kind in ("file", "device"):
            self._foreign.add(f"{kind} {detail}")
        elif kind == "anonymous" and detail not in _OWN_KINDS:
            self._strange.add(detail)
        elif kind not in ("", "anonymous", *_HARMLESS):
            self._strange.add(f"{kind} {detail}")

    def held(self, environment: int) -> Held:
        foreign, strange = tuple(sorted(self._foreign)), tuple(sorted(self._strange))
        return Held(foreign, strange, environment, tuple(sorted(self._kvm)))


def _root_of(proc: str, given: Collection[str]) -> Callable[[], set[str]]:
    """Ids of the mounts of its root, asked for only when a file was not given: rarely after the
    start. What it opened there (a library, say) lies on one of them, and they are read-only.
    """

    @cache
    def own_root() -> set[str]:
        helper = {each.partition(" ")[2] for each in given if each.startswith("mount ")}
        return _mount_ids(proc) | helper

    return own_root


def _of_copy(
    process: int, number: int, given: Collection[str], own_root: Callable[[], set[str]]
) -> tuple[str, str]:
    """(kind, detail), as `_settled`; a copy cannot become another while it is looked at."""
    try:
        copy = syscalls.pidfd_getfd(process, number)
    except OSError as error:
        if error.errno == errno.EBADF:
            return "", ""  # closed since it was listed
        raise
    try:
        link = os.readlink(f"/proc/self/fd/{copy}")
        kind, detail = procfile.kind_by_link(link, lambda: os.fstat(copy))
        if kind in ("anonymous", *_HARMLESS):
            return kind, detail
        if f"{kind} {detail}" in given:
            return "", ""
        facts = procfile.fields(f"/proc/self/fdinfo/{copy}")
        return ("", "") if facts.get("mnt_id") in own_root() else (kind, detail)
    finally:
        os.close(copy)


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
    lines = procfile.read(f"{proc}/mountinfo").decode("utf-8", "replace").split("\n")[:-1]
    return {line.partition(" ")[0] for line in lines}
