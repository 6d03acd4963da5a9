"""Reads, as whoever runs this, a process that has a subordinate identity, and prints what was seen.

Run by test_lan_user.py: python within_of_user.py ID
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "security"))

from escape import proc  # type: ignore[import-not-found]

WORD = "a-word-in-its-environment"
BECOME = f"read go; exec setpriv --reuid=1 --regid=1 --clear-groups env -i A={WORD} sleep 60"


def until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not true():
        assert time.monotonic() < limit, "the process does not get there"
        time.sleep(0.02)


def main() -> None:
    last = sys.argv[1]
    child = subprocess.Popen(["unshare", "--user", "sh", "-c", BECOME], stdin=subprocess.PIPE)
    try:
        own = os.readlink("/proc/self/ns/user")
        until(lambda: os.readlink(f"/proc/{child.pid}/ns/user") != own)
        for program, outer in (("newuidmap", os.getuid()), ("newgidmap", os.getgid())):
            rows = ["0", str(outer), "1", "1", last, "1"]
            subprocess.run([program, str(child.pid), *rows], check=True)
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
        until(lambda: proc.arguments(child.pid)[0] == "sleep")
        try:
            Path(f"/proc/{child.pid}/environ").read_bytes()
            plain = "read"
        except PermissionError:
            plain = "refused"
        found = {
            "uid": proc.status(child.pid)["Uid"].split()[0],
            "plain": plain,
            "memory": list(proc.find_in_memory(child.pid, {"word": WORD.encode()})),
            "environment": proc.environment(child.pid).decode(),
            "descriptors": len(proc.descriptors(child.pid)),
            "mounts": len(proc.mounts(child.pid)),
            "address": proc.readable_address(child.pid) > 0,
            "slices": [proc.time_slice(child.pid) >= 0, proc.time_slice(0) >= 0],
        }
    finally:
        child.kill()
        child.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
