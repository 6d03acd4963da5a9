"""What an ordinary user cannot share, where root could, and why: judged before anything is started.

Root shows a directory's files as the sandbox's own (idmapped mount) and copies one mount without
those below it; the kernel lets nobody else do either. It must not open anything.
"""

from __future__ import annotations

import os
import stat

from reconcilers.confinement import procfile
from reconcilers.hostpath import Opened
from specs.boxfile import Boxfile, Isolation

_STANDARD = "or use isolation: standard"


def sees(box: Boxfile, owner: tuple[int, int], *, ordinary: bool) -> str:
    """Which files the helper of a mount may open, for whoever reads a report."""
    if not ordinary:
        return f"what {owner[0]}:{owner[1]} may"
    return "what others may" if box.isolation is Isolation.strict else "what its user may"


def lacking(at: Opened, box: Boxfile, *, asks_rw: bool) -> str:
    """Why an ordinary user's `box` cannot have the directory; empty when it can.

    strict: the helper is a stranger to the user, and sees what strangers may.
    """
    strict = box.isolation is Isolation.strict
    if strict and asks_rw:
        return (
            "isolation: strict can share it read-only alone: only root can show the files of its "
            f"owner to the identity of a sandbox; use mode: ro, {_STANDARD}"
        )
    if strict and at.closed:
        return (
            f"isolation: strict shares what everybody may read, and others may not search "
            f"{at.closed}: chmod o+x {at.closed}, {_STANDARD}"
        )
    wanted = stat.S_IROTH | stat.S_IXOTH
    if strict and at.mode & wanted != wanted:
        return (
            f"isolation: strict shares what everybody may read, and others may not read it: "
            f"chmod o+rx {at.path}, {_STANDARD}"
        )
    if below := mounted_below(at.path):
        return (
            f"{below} is mounted below it: the kernel lets only root leave that out; unmount it "
            "or share another directory"
        )
    return ""


def mounted_below(path: str) -> str:
    """The first mount point of this process's view below `path`, empty when there is none.

    `path` has no link in it. Those that another one hides count: the kernel counts them, too.
    """
    prefix = path.rstrip("/") + "/"
    for line in os.fsdecode(procfile.read("/proc/self/mountinfo")).split("\n")[:-1]:
        point = _plain(line.split(" ")[4])
        if point.startswith(prefix):
            return point
    return ""


def _plain(text: str) -> str:
    """proc(5) writes space, tab, newline and backslash as three octal digits."""
    for number in (0o40, 0o11, 0o12, 0o134):  # the backslash last
        text = text.replace(f"\\{number:03o}", chr(number))
    return text
