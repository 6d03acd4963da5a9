"""Gives the user namespace of a launcher its identities: what the waiting caller does for it.

Root and whoever maps nobody but himself write the maps directly; for subordinate identities an
ordinary user needs newuidmap and newgidmap, which look at /etc/subuid and /etc/subgid. It must
never try a smaller map when the wanted one is refused.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence

from reconcilers.confinement import procfile
from reconcilers.confinement.policy import UserNamespace
from reconcilers.process import SEARCH, run
from specs.errors import CommandError, ConfinementError, HostError

LAYER = "user namespace"
NO_NEW_PRIVS_FIX = (
    "no_new_privs is set on this process, so set-user-ID programs have no power: start the "
    "controller without it (NoNewPrivileges=no in a unit)"
)


def write_maps(pid: int, wanted: UserNamespace) -> None:
    """Maps `wanted` into the fresh user namespace of `pid`. Raises ConfinementError, OSError."""
    if os.geteuid() == 0 or not wanted.setgroups:
        if not wanted.setgroups:
            _write(f"/proc/{pid}/setgroups", "deny")
        _write(f"/proc/{pid}/uid_map", rows_text(wanted.uid_map))
        _write(f"/proc/{pid}/gid_map", rows_text(wanted.gid_map))
        return
    for program, rows, file in (
        ("newuidmap", wanted.uid_map, "/etc/subuid"),
        ("newgidmap", wanted.gid_map, "/etc/subgid"),
    ):
        try:
            run([program, str(pid), *(str(number) for row in rows for number in row)])
        except HostError as error:
            raise ConfinementError(
                f"{program} is not installed", layer=LAYER, fix="apt-get install uidmap"
            ) from error
        except CommandError as error:
            raise ConfinementError(
                f"{program} refuses: {error.last_lines or error.message}",
                layer=LAYER,
                where=file,
                fix=_fix(program, file, rows),
            ) from error


def rows_text(rows: Sequence[tuple[int, int, int]]) -> str:
    """As in /proc/PID/uid_map (user_namespaces(7)): a line of inside, outside, count for each."""
    return "\n".join(" ".join(map(str, row)) for row in rows)


def _fix(program: str, file: str, rows: Sequence[tuple[int, int, int]]) -> str:
    if procfile.fields("/proc/self/status").get("NoNewPrivs") == "1":
        return NO_NEW_PRIVS_FIX
    path = shutil.which(program, path=SEARCH) or program
    if not _has_power(path):
        return (
            f"apt-get install --reinstall uidmap: {path} must be root's and set-user-ID, or have "
            "the file capability for it, on a file system that is not mounted nosuid"
        )
    theirs = ", ".join(f"{first}-{first + count - 1}" for _, first, count in rows)
    return f"{file} must give this user what of {theirs} is not his own"


def _has_power(path: str) -> bool:
    """Whether executing it gives rights that the caller lacks (execve(2), capabilities(7))."""
    try:
        found = os.stat(path)
        if os.statvfs(path).f_flag & os.ST_NOSUID:
            return False
        if found.st_mode & stat.S_ISUID and found.st_uid == 0:
            return True
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _write(path: str, text: str) -> None:
    """In one write: the kernel takes a map only once and only as a whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
