"""Readings of a VMM's control group: which group it is in, and what the group allows."""

from __future__ import annotations

import os
from collections.abc import Iterator

from reconcilers.confinement.cgroup import PAGE, Cgroup, members
from reconcilers.confinement.policy import Confinement
from specs.names import HostNames
from specs.reading import Reading


def read_group(pid: int, want: Confinement, names: HostNames) -> Iterator[Reading]:
    """Membership of every thread in every hierarchy, then the limits."""
    group = Cgroup(names)
    yield from read_membership(pid, names)
    try:
        facts = group.read()
    except FileNotFoundError:
        yield _reading("limits", "set", "the group does not exist", names.cgroup)
        return
    limits = want.limits
    wanted = {
        "memory": (limits.memory_bytes // PAGE * PAGE, facts.memory_bytes),
        "pids": (limits.pids_max, facts.pids_max),
        "cpu quota": (limits.cpu_quota_us, facts.cpu_quota_us),
        "cpu period": (limits.cpu_period_us, facts.cpu_period_us),
        "cpu weight": (group.weight(limits), facts.cpu_weight),
    }
    for item, (value, found) in wanted.items():
        yield _reading(item, str(value), "no limit" if found is None else str(found), names.cgroup)
    if facts.swap_counted:
        found = facts.swap_bytes
        yield _reading("swap", "0", "no limit" if found is None else str(found), names.cgroup)
    else:
        yield _reading("swap", "not counted by this kernel", "not counted by this kernel", "memsw")
    yield _reading("frozen", "no", "yes" if facts.frozen else "no", names.cgroup)


def read_membership(pid: int, names: HostNames) -> Iterator[Reading]:
    """Membership alone, of every thread in every hierarchy."""
    for folder, hierarchy in Cgroup(names).hierarchies().items():
        outside = _outside(pid, folder)
        got = names.cgroup if not outside else f"elsewhere: {outside}"
        yield _reading(f"member of {hierarchy}", names.cgroup, got, folder)


def _outside(pid: int, folder: str) -> str:
    """The process, or threads of it, that are not in the group; empty when all are."""
    if pid not in members(folder):
        return f"process {pid}"
    if not os.path.exists(f"{folder}/tasks"):
        return ""  # in the v2 tree all threads of a process are in one group
    before = os.listdir(f"/proc/{pid}/task")
    inside = set(members(folder, "tasks"))
    lost = [tid for tid in before if int(tid) not in inside]
    # a thread may have ended between the two lists
    lost = [tid for tid in lost if os.path.exists(f"/proc/{pid}/task/{tid}")]
    return f"threads {' '.join(lost)}" if lost else ""


def _reading(item: str, want: str, got: str, source: str) -> Reading:
    return Reading("cgroup", item, want, got, want == got, source, "live", "in place")
