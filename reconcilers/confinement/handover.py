"""`python -m reconcilers.confinement.handover UID [PID]`: root gives a user control groups.

Called by `./dev setup` through sudo. On v1 only root can make a first group in a hierarchy; on v2
without systemd a subtree with the process PID in it. Idempotent. It changes no group of anybody
else and needs nothing but the standard library and its sibling modules.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

from reconcilers.confinement import handed
from reconcilers.confinement.cgrouptree import host_tree
from specs.errors import BoxError

_SYSTEMD = Path("/run/systemd/system")  # sd_booted(3)
_DELEGATED_FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")  # cgroups(7)
SESSION = "session"


def hand_over(uid: int, gid: int, pid: int = 0) -> list[str]:
    """Prepares what is missing; says what was done or is there, one line each.

    `pid` is moved into the v2 subtree: a user can take no process into it from outside. Raises
    OSError, ConfinementError.
    """
    tree = host_tree()
    tree.check()
    said = []
    v2 = [name for name, at in tree.controllers.items() if at.version == 2]
    for name, at in sorted(tree.controllers.items()):
        if at.version == 1:
            place = Path(at.folder, handed.prepared(uid))
            _make(place, uid, gid)
            said.append(f"{name}: {place}")
    if v2 and _SYSTEMD.exists():
        said.append(f"{', '.join(v2)}: the user's own systemd delegates a unit when box starts")
    elif v2:
        place = Path(tree.unified, handed.prepared(uid))
        for above in (place.parent.parent, place.parent):
            above.mkdir(mode=0o755, exist_ok=True)
            (above / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in v2))
        _make(place, uid, gid)
        for file in _DELEGATED_FILES:
            os.chown(place / file, uid, gid)
        said.append(f"{', '.join(v2)}: {place}")
        if pid:
            session = place / SESSION
            _make(session, uid, gid)
            os.chown(session / "cgroup.procs", uid, gid)
            (session / "cgroup.procs").write_text(str(pid))
            said.append(f"process {pid} is in {session}")
    return said


def _make(place: Path, uid: int, gid: int) -> None:
    place.parent.mkdir(mode=0o755, exist_ok=True)
    place.mkdir(mode=0o755, exist_ok=True)
    os.chown(place, uid, gid, follow_symlinks=False)


def main(arguments: list[str]) -> int:
    """What `./dev setup` and `./dev groups` call."""
    numbers = [int(each) for each in arguments if each.isdigit()]
    if len(numbers) != len(arguments) or len(numbers) not in (1, 2):
        print("usage: python -m reconcilers.confinement.handover UID [PID]", file=sys.stderr)
        return 2
    uid, *pid = numbers
    try:
        for line in hand_over(uid, pwd.getpwuid(uid).pw_gid, *pid):
            print(f"    {line}")
    except KeyError:
        print(f"box: there is no user {uid}", file=sys.stderr)
        return 1
    except (BoxError, OSError) as error:
        print(f"box: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
