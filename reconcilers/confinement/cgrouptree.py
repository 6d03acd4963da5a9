"""Where each control group controller of this host is mounted, and in which version.

`tree_from` is pure: the text of /proc/self/mountinfo and of the v2 tree's cgroup.controllers in,
a value out. A hybrid host has some controllers in v1 hierarchies and others in the v2 tree; each is
used where it is found. Root's groups begin at the top of a hierarchy, an ordinary user's at the
folder that was handed to him (`handed`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from reconcilers.confinement import handed
from specs.errors import ConfinementError

LIMITING = ("memory", "pids", "cpu")
FREEZER = "freezer"  # v1 only; the v2 tree freezes and kills by itself


@dataclass(frozen=True, slots=True)
class Mounted:
    """One controller: `version` 1 or 2, the folder its hierarchy is mounted on, and the path below
    it that our groups begin at (empty: the folder itself)."""

    version: int
    folder: str
    base: str = ""

    @property
    def place(self) -> str:
        """The folder that our groups are made in."""
        return f"{self.folder}/{self.base}" if self.base else self.folder


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """The controllers of a host by name. `unified` is where our groups begin in the v2 tree, empty
    without one. `obstacle` says why an ordinary user cannot use them, and `fix` what helps."""

    controllers: Mapping[str, Mounted]
    unified: str
    obstacle: str = ""
    fix: str = ""

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
        if self.obstacle:
            raise ConfinementError(self.obstacle, layer="cgroup", fix=self.fix)
        if self.missing:
            _refuse(self.missing, self.unified)

    def folders(self) -> tuple[str, ...]:
        """The places a sandbox has a group in, one for each hierarchy; memory's first."""
        return tuple(self.hierarchies())

    def hierarchies(self) -> dict[str, str]:
        """The name of each hierarchy (what it is mounted on) by the place our groups begin at."""
        first = [name for name in (*LIMITING, FREEZER) if name in self.controllers]
        mounted = [self.controllers[name] for name in [*first, *self.controllers]]
        return {at.place: os.path.basename(at.folder) for at in mounted}


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


_found: list[CgroupTree] = []


def host_tree() -> CgroupTree:
    """The tree of this host, read once: hierarchies are not mounted under a running controller.

    One that an ordinary user cannot use yet is read again: root may prepare it any moment.
    """
    if not _found:
        tree = top_tree()
        if os.geteuid() != 0:
            tree = tree_of_user(tree)
        if tree.obstacle:
            return tree
        _found.append(tree)
    return _found[0]


def top_tree() -> CgroupTree:
    """The hierarchies of this host from their tops on, as root uses them."""
    mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
    unified = tree_from(mountinfo, "").unified
    offered = Path(unified, "cgroup.controllers").read_text() if unified else ""
    return tree_from(mountinfo, offered)


def tree_of_user(tree: CgroupTree) -> CgroupTree:
    """The same hierarchies, from the folders on that were handed to this process's user."""
    versions = {at.version for at in tree.controllers.values()}
    base2, offered, obstacle = "", set(tree.controllers), None
    if 2 in versions:
        base2, obstacle = handed.delegated(tree.unified)
        offered = set(Path(tree.unified, base2, "cgroup.controllers").read_text().split())
    bases = {1: handed.prepared(), 2: base2}
    controllers = {
        name: Mounted(at.version, at.folder, bases[at.version])
        for name, at in tree.controllers.items()
        if at.version == 1 or name in offered
    }
    unified = Mounted(2, tree.unified, base2).place if tree.unified else ""
    if 1 in versions and obstacle is None:
        places = [at.place for at in controllers.values() if at.version == 1]
        obstacle = handed.obstacle_to(places)
    return CgroupTree(controllers, unified, *(obstacle or ()))


def _unescaped(path: str) -> str:
    """proc(5): space, tab, newline and backslash are written in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _refuse(missing: tuple[str, ...], unified: str) -> NoReturn:
    names = ", ".join(missing)
    noun = "controller" if len(missing) == 1 else "controllers"
    fix = f"mount the cgroup hierarchy of {names}"
    if unified:
        fix += f", or make {unified}/cgroup.controllers list it (a container must be given it)"
    if "/user@" in unified:
        fix = f"Delegate={' '.join(LIMITING)} in a drop-in of user@.service, then log in again"
    raise ConfinementError(
        f"the cgroup {noun} {names} cannot be used on this host", layer="cgroup", fix=fix
    )
