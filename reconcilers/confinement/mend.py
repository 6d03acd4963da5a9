"""Puts back what somebody changed on a live VMM from outside: limits, membership, rlimits.

It must not touch what only a new process can have; such a reading is left for the caller, who
replaces the VMM.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence

from reconcilers.confinement import inside, syscalls
from reconcilers.confinement.cgroup import Cgroup
from reconcilers.confinement.policy import Confinement
from reconcilers.process import run
from specs.errors import CommandError, HostError
from specs.names import HostNames
from specs.reading import Reading


def mend(
    pid: int, want: Confinement, names: HostNames, readings: Sequence[Reading]
) -> tuple[Reading, ...]:
    """Mends every reading that is not ok and says "in place"; returns those it acted on.

    Whether it helped is seen by reading again. Raises HostError when the host refuses a change,
    ProcessLookupError when the process has ended.
    """
    broken = tuple(each for each in readings if not each.ok and each.mend == "in place")
    if any(each.layer == "cgroup" for each in broken):
        _mend_group(pid, want, names, [each for each in broken if each.layer == "cgroup"])
    wrong = {each.item for each in broken if each.layer == "rlimits"}
    for name, soft, hard in want.rlimits:
        if name in wrong:
            _set_limit(pid, want, name, soft, hard)
    if any(each.layer == "scheduler" for each in broken):
        _set_time_slice(pid, want)
    return tuple(each for each in broken if each.layer in ("cgroup", "rlimits", "scheduler"))


def _mend_group(pid: int, want: Confinement, names: HostNames, broken: Sequence[Reading]) -> None:
    group = Cgroup(names)
    items = {each.item for each in broken}
    if not group.exists() or "limits" in items:
        group.create(want.limits)
    if any(item.startswith("member of") for item in items) or "limits" in items:
        inside.attach(pid, want, group.procs_files())
    if items & {"memory", "pids", "cpu quota", "cpu period", "cpu weight", "swap"}:
        group.apply(want.limits)
    if "frozen" in items:
        group.freeze(False)


def _set_time_slice(pid: int, want: Confinement) -> None:
    """A thread that is made meanwhile has that of its maker; it is read in the next pass."""
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with contextlib.suppress(ProcessLookupError):
                syscalls.set_time_slice(int(tid), want.time_slice_ns)
        except OSError as error:
            raise HostError(
                f"the time slice of process {pid} cannot be set: {error.strerror}",
                fix="give the controller CAP_SYS_NICE, or delete and create the sandbox",
            ) from error


def _set_limit(pid: int, want: Confinement, name: str, soft: int, hard: int) -> None:
    try:
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        resource.prlimit(pid, number, (soft, hard))
    except PermissionError as error:
        if os.geteuid() != 0:  # what an ordinary user lowered he can never raise (setrlimit(2))
            raise HostError(
                f"the limit {name} of process {pid} was lowered and cannot be raised again",
                fix="delete and create the sandbox",
            ) from error
        _set_limit_as_owner(pid, want, name, soft, hard)


def _set_limit_as_owner(pid: int, want: Confinement, name: str, soft: int, hard: int) -> None:
    """prlimit(2): without CAP_SYS_RESOURCE even root must have the identity of the process."""
    identity = [f"--reuid={want.uid}", f"--regid={want.gid}", "--clear-groups"]
    value = ":".join("unlimited" if each < 0 else str(each) for each in (soft, hard))
    try:
        run(["setpriv", *identity, "prlimit", f"--pid={pid}", f"--{name}={value}"])
    except CommandError as error:
        raise HostError(
            f"the limit {name} of process {pid} cannot be set: {error.last_lines}",
            fix="give the controller CAP_SYS_RESOURCE, or delete and create the sandbox",
        ) from error
