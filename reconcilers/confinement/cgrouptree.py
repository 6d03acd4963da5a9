"""Where each control group controller of this host is mounted, and in which version.

`tree_from` is pure: the text of /proc/self/mountinfo and of the v2 tree's cgroup.controllers in,
a value out. A hybrid host has some controllers in v1 hierarchies and others in the v2 tree; each is
used where it is found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from specs.errors import ConfinementError

LIMITING = ("memory", "pids", "cpu")
FREEZER = "freezer"  # v1 only; the v2 tree freezes and kills by itself


@dataclass(frozen=True, slots=True)
class Mounted:
    """One controller: `version` 1 or 2, the folder its hierarchy is mounted on."""

    version: int
    folder: str


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """The controllers of a host by name. `unified` is the v2 tree's folder, empty without one."""

    controllers: Mapping[str, Mounted]
    unified: str

    @property
    def missing(self) -> tuple[str, ...]:
        """Needed controllers this host does not offer, in the order memory, pids, cpu, freezer."""
        needed = list(LIMITING)
        if any(
            self.controllers[name].version == 1 for name in LIMITING if name in self.controllers
        ):
            needed.append(FREEZER)
        return tuple(name for name in needed if name not in self.controllers)

    def check(self) -> None:
        """Raises ConfinementError(layer="cgroup") naming every missing controller."""
        if self.missing:
            _refuse(self.missing, self.unified)

    def folders(self) -> tuple[str, ...]:
        """The mount points a sandbox has a group in, each once; memory's first."""
        first = [name for name in (*LIMITING, FREEZER) if name in self.controllers]
        return tuple(
            dict.fromkeys(self.controllers[name].folder for name in [*first, *self.controllers])
        )


def tree_from(mountinfo: str, unified_controllers: str) -> CgroupTree:
    """The tree that /proc/self/mountinfo shows.

    `unified_controllers` is the content of the v2 tree's cgroup.controllers, "" without a v2 tree.
    """
    controllers: dict[str, Mounted] = {}
    unified = ""
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        where, kinds = before.split(), after.split()
        if not separator or len(where) < 5 or len(kinds) < 3:
            continue
        folder = _unescaped(where[4])
        if kinds[0] == "cgroup":
            for name in kinds[2].split(","):
                controllers.setdefault(name, Mounted(1, folder))
        elif kinds[0] == "cgroup2" and not unified:
            unified = folder
    wanted = {*LIMITING, FREEZER}
    found = {name: at for name, at in controllers.items() if name in wanted}
    if unified:
        for name in unified_controllers.split():
            if name in LIMITING and name not in found:  # the kernel binds a controller only once
                found[name] = Mounted(2, unified)
    return CgroupTree(found, unified)


@cache
def host_tree() -> CgroupTree:
    """The tree of this host, read once: hierarchies are not mounted under a running controller."""
    mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
    unified = tree_from(mountinfo, "").unified
    offered = Path(unified, "cgroup.controllers").read_text() if unified else ""
    return tree_from(mountinfo, offered)


def _unescaped(path: str) -> str:
    """proc(5): space, tab, newline and backslash are written in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _refuse(missing: tuple[str, ...], unified: str) -> NoReturn:
    names = ", ".join(missing)
    noun = "controller" if len(missing) == 1 else "controllers"
    fix = f"mount the cgroup hierarchy of {names}"
    if unified:
        fix += f", or make {unified}/cgroup.controllers list it (a container must be given it)"
    raise ConfinementError(
        f"the cgroup {noun} {names} cannot be used on this host", layer="cgroup", fix=fix
    )
