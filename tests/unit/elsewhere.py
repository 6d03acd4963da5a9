"""How a test's command gets mounts of its own, or is a user whom nobody knows.

Root may test a clone that lies where only its owner may look: in a user namespace root would be
stopped there like anybody else, so it is used by an ordinary user's run alone.
"""

from __future__ import annotations

import os


def own_mounts() -> list[str]:
    """The start of a command line whose mounts nobody else sees."""
    space = ["unshare", "--mount", "--propagation", "private"]
    return space if os.geteuid() == 0 else [*space, "--user", "--map-root-user"]


def unknown_user(uid: int) -> list[str]:
    """The start of a command line run as `uid`, who may yet read this clone."""
    if os.geteuid() != 0:
        return ["unshare", "--user", f"--map-user={uid}", f"--map-group={uid}"]
    rights = "+dac_override,+dac_read_search"
    who = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return [*who, f"--inh-caps={rights}", f"--ambient-caps={rights}"]
