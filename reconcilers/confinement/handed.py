"""Which control groups an ordinary user was handed: prepared by root on v1, delegated on v2.

It only looks. `handover` prepares (as root), `userscope` asks systemd and says here what it
learnt; a group that is not the user's own is never used, and what is missing is said with its fix.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = "box-users"
Obstacle = tuple[str, str]
"""What is in the way, and its fix."""

SYSTEMD = Path("/run/systemd/system")  # sd_booted(3)
_accepted: list[str] = []


def prepared(uid: int | None = None) -> str:
    """Where root prepares the groups of a user, below the mount point of each hierarchy."""
    return f"{FOLDER}/{os.geteuid() if uid is None else uid}"


def obstacle_to(places: Sequence[str]) -> Obstacle | None:
    """Why these folders cannot hold our groups."""
    refused = sorted({place for place in places if not os.access(place, os.W_OK | os.X_OK)})
    if not refused:
        return None
    return f"no control groups were prepared for this user: {', '.join(refused)}", setup_fix()


def setup_fix() -> str:
    """They vanish with each boot, so this is what a user reads most often."""
    command = f"{sys.executable} -B -m reconcilers.confinement.handover {os.geteuid()}"
    return f"./dev setup, or sudo {command}; again after each start of the host"


def own_group() -> str:
    """The v2 group of this process, below the top of the tree; empty: the top itself."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:].strip("/")
    return ""


def delegated(unified: str, own: str | None = None) -> tuple[str, Obstacle | None]:
    """(path below the v2 tree, what is in the way) of the subtree our groups can be made in.

    A process may only be moved between groups of a subtree that its user was given as a whole
    (cgroups(7), "Delegation containment"), so it must be one that this process is in.
    """
    own = own_group() if own is None else own
    parts = own.split("/") if own else []
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    ours = [path for path in above if _is_ours(Path(unified, path))]
    unit = unit_of(own)
    if unit is not None:
        # all below the user's systemd is his, but only a unit that asked for it is left alone
        told = unit in _accepted or _is_delegated(Path(unified, unit))
        ours = [unit] if unit in ours and told else []
    if ours:
        return ours[0], None
    return "", (
        f"this process is in the group /{own}, which is in no subtree that was delegated to its "
        "user, so it can move no process into a group of its own",
        subtree_fix(),
    )


def unit_of(group: str) -> str | None:
    """The path of the unit of a user's systemd that a group is or lies in: empty where it is in
    none of them, None where it does not belong to such a systemd."""
    parts = group.split("/")
    managed = next((n for n, part in enumerate(parts) if part.startswith("user@")), None)
    if managed is None:
        return None
    for count in range(managed + 2, len(parts) + 1):
        if parts[count - 1].endswith((".scope", ".service")):
            return "/".join(parts[:count])
    return ""


def accept(unit: str) -> None:
    """The user's systemd said that it leaves this unit to others. systemd 252 writes no mark."""
    _accepted.append(unit)


def subtree_fix() -> str:
    """How a user gets a v2 subtree with a process of his in it."""
    if SYSTEMD.exists():
        return (
            f"sudo loginctl enable-linger {_name()} (with the package dbus-user-session), then "
            "start box again: it asks your systemd for a scope"
        )
    return "let root make a subtree with your shell in it: ./dev groups"


def _name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _is_ours(folder: Path) -> bool:
    """The three things a delegation gives (cgroups(7)); threads are not moved one by one."""
    try:
        owner = folder.stat().st_uid
    except OSError:
        return False
    files = ("cgroup.procs", "cgroup.subtree_control")
    return owner == os.geteuid() and all(os.access(folder / file, os.W_OK) for file in files)


def _is_delegated(folder: Path) -> bool:
    """systemd marks what it leaves to others (systemd.resource-control(5), Delegate=): the one of
    the system always, that of a user in newer versions."""
    for name in ("user.delegate", "trusted.delegate"):
        try:
            return os.getxattr(folder, name) == b"1"
        except OSError:
            continue
    return False
