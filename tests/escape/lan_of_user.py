"""Builds the network that the suite attacks, as whoever runs this, and prints what it is like.

No machine is started. Run by test_lan_user.py: python lan_of_user.py FOLDER ID
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "security"))

from escape import lan, report  # type: ignore[import-not-found]
from escape.arena import Arena  # type: ignore[import-not-found]

# In a user namespace of the child's own, as the product makes one for a sandbox.
MAPPED = """
unshare --user sleep 20 & child=$!
own=$(readlink /proc/self/ns/user)
until [ "$(readlink /proc/$child/ns/user)" != "$own" ]; do sleep 0.05; done
newuidmap $child 0 "$(id -u)" 1 1 "$1" 1 && newgidmap $child 0 "$(id -g)" 1 1 "$1" 1
tr -s ' ' ' ' </proc/$child/uid_map
kill $child
"""


def looked(made: Any, last: str) -> dict[str, object]:
    wanted = lan.doors((*lan.HOST, lan.PUBLIC4, lan.PUBLIC6, *lan.PRIVATE), lan.PORTS)
    made.alone()
    refused = ""
    try:
        made.alone("/proc/self/ns/net")
    except report.Unproved as error:
        refused = str(error)

    def inside(*command: str) -> str:
        enter = made.entering_as_we_are("host")
        done = subprocess.run(command, preexec_fn=enter, capture_output=True, text=True)
        return done.stdout + done.stderr

    def heard(space: str) -> int:
        """On a busy host a knock may come later than the suite waits."""
        missing = set(wanted)
        for _ in range(3):
            missing -= made.knock(space, missing)
        return len(set(wanted) - missing)

    return {
        "asked": len(wanted),
        "beside": heard("beside"),
        "host": heard("host"),
        "refused": refused,
        "change": made.sees_a_change(),
        "status": inside("grep", "-E", "^(Uid|Cap|NoNewPrivs)", "/proc/self/status"),
        "link": inside("ip", "link", "add", "more0", "type", "bridge"),
        "mapped": inside("sh", "-c", MAPPED, "sh", last),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir()
    before = lan.links(None)
    made = lan.Lan(Arena(["/bin/false"], folder))
    try:
        made.build()
        found = looked(made, sys.argv[2])
    except report.Unproved as error:
        found = {"unproved": str(error)}
    finally:
        made.close()
    found["untouched"] = lan.links(None) == before
    found["uid"] = os.getuid()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
