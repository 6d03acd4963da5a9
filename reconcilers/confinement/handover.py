"""`python -m reconcilers.confinement.handover [--missing] UID [PID]`: root prepares for a user.

Control groups (on v1 only root can make a first one in a hierarchy; on v2 without systemd a subtree
with the process PID in it), a range of subordinate identities, the group of /dev/kvm. Called by
`./dev setup` through sudo. Idempotent; it changes no group and no line of anybody else. With
--missing it changes nothing and says what it would do.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from reconcilers.confinement import cpuweight, handed, ordinary
from reconcilers.confinement.cgrouptree import top_tree
from reconcilers.process import run
from specs.errors import BoxError

_DELEGATED_FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")  # cgroups(7)
SESSION = "session"

Act = tuple[str, Callable[[], object]]
"""What is missing, in words, and what makes it."""


def missing(uid: int, pid: int = 0) -> Iterator[Act]:
    """What the user `uid` lacks. Raises KeyError when there is no such user, ConfinementError."""
    user = ordinary.of_uid(uid)
    yield from _groups(user.uid, user.gid, pid)
    if not user.ranges:
        *command, name = ordinary.range_command(user)
        said = f"identities for strict sandboxes: {' '.join(command[1:])} {name}"
        yield said, partial(run, [*command, name])
    gid = _kvm_gid()
    if gid and not user.may_map(gid):
        add = ["usermod", "--add-subgids", f"{gid}-{gid}", user.name]
        yield f"the group {gid} of {ordinary.KVM} for their VMMs", partial(run, add)


def hand_over(uid: int, pid: int = 0) -> list[str]:
    """Makes all that is missing; says what it made. Raises KeyError, BoxError, OSError."""
    made = []
    for said, act in missing(uid, pid):
        act()
        made.append(said)
    return made


def hand_over_groups(uid: int) -> None:
    """The control groups alone, which no file of the host tells of. Raises as `hand_over`."""
    for _, act in _groups(uid, pwd.getpwuid(uid).pw_gid, 0):
        act()


def _groups(uid: int, gid: int, pid: int) -> Iterator[Act]:
    tree = top_tree()
    tree.check()
    for folder in sorted({at.folder for at in tree.controllers.values() if at.version == 1}):
        place = Path(folder, handed.prepared(uid))
        if not _owned(place, uid):
            yield f"control groups: {place}", partial(_make, place, uid, gid)
    if tree.controllers["cpu"].version == 1:
        weight = Path(tree.controllers["cpu"].folder, handed.FOLDER, "cpu.shares")
        if not weight.exists() or weight.read_text().strip() != str(cpuweight.V1):
            said = f"CPU weight of all users' sandboxes: {weight} {cpuweight.V1}"
            yield said, partial(weight.write_text, str(cpuweight.V1))
    v2 = [name for name, at in tree.controllers.items() if at.version == 2]
    if not v2 or handed.SYSTEMD.exists():  # the user's own systemd delegates a unit when box starts
        return
    place = Path(tree.unified, handed.prepared(uid))
    if not _owned(place / "cgroup.procs", uid):
        yield f"control groups: {place}", partial(_make_v2, place, v2, uid, gid)
    if pid:
        session = place / SESSION
        yield f"process {pid} moves to {session}", partial(_move, session, pid, uid, gid)


def _owned(path: Path, uid: int) -> bool:
    try:
        return path.stat().st_uid == uid
    except FileNotFoundError:
        return False


def _make(place: Path, uid: int, gid: int) -> None:
    place.parent.mkdir(mode=0o755, exist_ok=True)
    place.mkdir(mode=0o755, exist_ok=True)
    os.chown(place, uid, gid, follow_symlinks=False)


def _make_v2(place: Path, controllers: list[str], uid: int, gid: int) -> None:
    for above in (place.parent.parent, place.parent):
        above.mkdir(mode=0o755, exist_ok=True)
        wanted = " ".join(f"+{name}" for name in controllers)
        (above / "cgroup.subtree_control").write_text(wanted)
    _make(place, uid, gid)
    for file in _DELEGATED_FILES:
        os.chown(place / file, uid, gid)


def _move(session: Path, pid: int, uid: int, gid: int) -> None:
    """A leaf of its own: a v2 group that passes controllers on may hold no process itself."""
    _make(session, uid, gid)
    os.chown(session / "cgroup.procs", uid, gid)
    (session / "cgroup.procs").write_text(str(pid))


def _kvm_gid() -> int:
    """The group that opens /dev/kvm; 0 when it is root's, everybody's, or there is no device."""
    try:
        node = ordinary.KVM.stat()
    except OSError:
        return 0
    everybody = node.st_mode & stat.S_IROTH and node.st_mode & stat.S_IWOTH
    group = node.st_mode & stat.S_IRGRP and node.st_mode & stat.S_IWGRP
    return node.st_gid if group and not everybody else 0


def main(arguments: list[str]) -> int:
    """What `./dev setup` and `./dev groups` call."""
    only_tell = arguments[:1] == ["--missing"]
    numbers = [int(each) for each in arguments[only_tell:] if each.isdigit()]
    if len(numbers) != len(arguments) - only_tell or len(numbers) not in (1, 2):
        print(f"usage: {(__doc__ or '').partition('`')[2].partition('`')[0]}", file=sys.stderr)
        return 2
    try:
        pwd.getpwuid(numbers[0])
        lines = [said for said, _ in missing(*numbers)] if only_tell else hand_over(*numbers)
    except KeyError:
        print(f"box: there is no user {numbers[0]}", file=sys.stderr)
        return 1
    except (BoxError, OSError) as error:
        print(f"box: {error}", file=sys.stderr)
        return 1
    for line in lines:
        print(f"    {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
