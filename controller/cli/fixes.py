"""What a user can do about a condition whose message does not say it.

A message tells what is wrong and is the same for everybody; a fix names commands and files of this
home. It must not read anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconcilers.layout import Layout

if TYPE_CHECKING:
    from specs.conditions import Condition
    from specs.report import Failure


def fix_for(layout: Layout, name: str, wrong: Condition, failure: Failure | None = None) -> str:
    """One instruction, or empty when there is nothing to do or the message says it. Where the last
    `failure` is what the condition speaks of, its own fix.
    """
    if str(wrong.status) != "False":
        return ""
    if failure is not None and failure.fix and failure.message in wrong.message:
        return failure.fix
    match str(wrong.reason):
        case "RefusedByPolicy":
            return f"stay below the limits of {layout.policy}, or change them there"
        case "MountRefused":
            if "use mode: ro" in wrong.message or "chmod" in wrong.message:
                return ""
            return "share another directory, or make the missing one; docs/mounts.md has the rules"
        case "KvmNotUsable":
            return (
                "write accel: tcg to accept emulation (for trying and testing), or see box doctor"
            )
        case "EmulationRefused":
            return "box doctor says what this host lacks for hardware virtualization"
        case "DiskShrinkRefused":
            return "write the size the disk has, or more, as data.size_mib"
        case "DiskLost":
            return f"look into {layout.set_aside}, or box delete {name} to begin with a new disk"
        case "LayerFailed" | "LayerMissing":
            return f"box doctor, and box describe {name} for every reading"
    return ""
