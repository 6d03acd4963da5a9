"""What nobody may leave behind, whatever it was for: processes and mounts of a home."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tests.vm.harness import Home, until


def strays(home: Home) -> list[str]:
    """Processes of this home but for its controller and the VMMs of its sandboxes, and mounts that
    everybody sees beneath its folders. No command of `box` may be running.
    """
    expected = {os.getpid(), *home.vmms()}
    if home.controller is not None:
        expected.add(home.controller.pid)
    needles = [os.fsencode(home.path) + b"/", b"BOX_HOME=" + os.fsencode(home.path) + b"\0"]
    needles += [instance.encode() for instance in (home.instance, *home.helpers)]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in expected:
            continue
        with contextlib.suppress(OSError):
            arguments = (entry / "cmdline").read_bytes()
            told = arguments + (entry / "environ").read_bytes()
            if any(needle in told for needle in needles):
                found.append(f"process {entry.name}: {arguments.replace(bytes(1), b' ')!r}")
    beneath = (f" {home.path}/", f" {home.runtime}/")
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return found + [f"mount {line}" for line in mounts if any(each in line for each in beneath)]


def no_strays(home: Home) -> None:
    until(lambda: not strays(home), 60, lambda: f"nothing is left: {strays(home)}; {home.log()}")
