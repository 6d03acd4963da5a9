"""Checks of `box doctor` about what an ordinary user needs and root does not.

Maps and namespaces are really made, in a child that ends at once. What another room knows is asked
of that room, so that doctor and launcher never disagree.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from controller.cli.doctor_result import Result, Subject

_SYSCTL = Path("/proc/sys")
# (sysctl, the value that forbids, what to do): user_namespaces(7), Debian's and Ubuntu's own knobs
_FORBIDDING = (
    ("user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=10000"),
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "an AppArmor profile with `userns,` for the Python that runs box, or "
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def user_namespaces(name: str, about: Subject) -> Result:
    """In one of his own a user has the rights to make the others (user_namespaces(7))."""
    from reconcilers.confinement import ordinary, syscalls

    if ordinary.current() is None:
        return Result(name, "ok", "not needed by root")
    inner = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET
    if _in_child((syscalls.CLONE_NEWUSER, inner)):
        return Result(name, "ok", "may be made, with the others in them")
    found, fixes = [], []
    for path, forbidding, fix in _FORBIDDING:
        file = _SYSCTL / path
        if file.exists() and file.read_text().strip() == forbidding:
            found.append(f"{path.replace('/', '.')} is {forbidding}")
            fixes.append(fix)
    why = ", ".join(found) or "the kernel, a chroot or a container refuses them"
    fix = "; ".join(fixes) or "leave the chroot or container, or allow it user namespaces"
    return Result(name, "fail", f"user namespaces may not be made: {why}", fix)


def _in_child(steps: Sequence[int]) -> bool:
    from reconcilers.confinement import syscalls

    child = os.fork()
    if child == 0:
        status = 1
        try:
            for flags in steps:
                syscalls.unshare(flags)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def subordinate_ids(name: str, about: Subject) -> Result:
    """The lines of /etc/subuid and /etc/subgid, and one identity of them really mapped."""
    from reconcilers.confinement import ordinary
    from reconcilers.confinement.identity import IdentityRegistry, host_overlaps
    from specs.errors import ConfinementError, HostError

    user = ordinary.current()
    if user is None:
        return Result(name, "ok", "not needed by root")
    try:
        IdentityRegistry().check()
        ranges = ordinary.ranges_for_strict(user)
        if found := host_overlaps(ranges, (user.name, str(user.uid))):
            fix = "correct the lines in /etc/subuid and /etc/subgid"
            return Result(name, "fail", f"overlap: {'; '.join(found)}", fix)
        top = ranges[0].last
        maps, _ = ordinary.user_namespace_for(user, strict=True, uid=top, gid=top, kvm=False)
        _map_once(maps)
    except ConfinementError as problem:
        return Result(name, "fail", problem.message, problem.fix)
    except HostError as problem:
        return Result(name, "fail", problem.message, problem.fix)
    except OSError as problem:
        why = problem.strerror or str(problem)
        return Result(name, "fail", f"no map could be tried: {why}", "see user namespaces above")
    shown = ", ".join(map(str, ranges))
    return Result(name, "ok", f"{shown} for strict sandboxes; {top} was mapped for a trial")


def _map_once(maps: object) -> None:
    from reconcilers.confinement import idmaps, syscalls
    from reconcilers.confinement.policy import UserNamespace

    assert isinstance(maps, UserNamespace)
    ready, said = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go)
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            os.write(said, b"r")
            os.read(wait, 1)
        finally:
            os._exit(0)
    os.close(said)
    os.close(wait)
    try:
        if os.read(ready, 1) != b"r":
            raise OSError("the user namespace was refused")
        idmaps.write_maps(child, maps)
    finally:
        os.close(go)
        os.close(ready)
        os.waitpid(child, 0)


def kvm_group(name: str, about: Subject) -> Result:
    """Whether a strict VMM of this user may open /dev/kvm."""
    from reconcilers.confinement import ordinary
    from specs.errors import ConfinementError

    user = ordinary.current()
    if user is None:
        return Result(name, "ok", "not needed by root")
    try:
        gid = ordinary.kvm_group(user, True)
    except ConfinementError as problem:
        return Result(name, "warn", problem.message, problem.fix)
    if gid is None:
        return Result(name, "ok", f"everybody may open {ordinary.KVM}")
    return Result(name, "ok", f"the group {gid} of {ordinary.KVM} is mapped for VMMs")
