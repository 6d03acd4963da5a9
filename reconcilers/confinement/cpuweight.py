"""What all sandboxes together weigh where the host's CPUs are wanted by others too.

The group `box` that holds them weighs a part of what any other group does: cgroup.py sets that and
readback judges it. An ordinary user's `box` lies in a group of root's (version 1) or in a scope of
the user's systemd (version 2), and that one stands beside the rest of the host: here is what it
must weigh. It changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from reconcilers.confinement import handed
from reconcilers.confinement.cgrouptree import CgroupTree
from reconcilers.confinement.groupfiles import GroupV1, GroupV2
from reconcilers.confinement.policy import CPU_WEIGHT_PART

V1, V2 = (kind.default_weight // CPU_WEIGHT_PART for kind in (GroupV1, GroupV2))
SCOPE = "box.scope"


def outer_file(tree: CgroupTree) -> tuple[Path, int] | None:
    """The file with the weight of the group around an ordinary user's, and what it must hold.

    None where that group holds more than sandboxes: root's own tree, a subtree that somebody gave.
    """
    at = tree.controllers.get("cpu")
    if at is None or not at.base:
        return None
    if at.version == 1:
        return Path(at.folder, handed.FOLDER, "cpu.shares"), V1
    if at.base.endswith(f"/{SCOPE}"):
        return Path(at.place, "cpu.weight"), V2
    return None


def too_heavy(tree: CgroupTree) -> handed.Obstacle | None:
    """Why an ordinary user's sandboxes weigh more than they should, and the fix.

    Raises OSError when the group is gone.
    """
    outer = outer_file(tree)
    if outer is None:
        return None
    path, want = outer
    found = int(path.read_text())
    if found <= want:
        return None
    scope = f"systemctl --user set-property --runtime {SCOPE} CPUWeight={want}"
    fix = scope if path.name == "cpu.weight" else handed.setup_fix()
    return f"sandboxes may slow the rest of this host down: {path} is {found}, not {want}", fix
