"""The control group of one sandbox, over cgroup v1 and v2 alike: create, limit, join, kill, remove.

Every limit is read back after it was written: what the kernel rounded or ignored is an error, not a
log line. It must never touch a group outside `box/`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reconcilers.confinement.cgrouptree import LIMITING, CgroupTree, host_tree
from reconcilers.confinement.groupfiles import GroupV1, GroupV2
from reconcilers.confinement.policy import Limits
from specs.errors import ConfinementError, HostError
from specs.names import HostNames

PAGE = os.sysconf("SC_PAGESIZE")
_BUSY_WAIT = 5.0  # seconds for a group to let go of processes that have just died


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What the kernel says now. A limit that is not set is None. `oom_kills` counts since creation.

    `cpu_weight` is that of the group of all sandboxes, as its version of cgroups counts.
    `memory_bytes` is the limit, `memory_used` what is charged now, both in bytes. `swap_bytes` is
    how much swap is allowed beside it; None: no limit, or not counted when `swap_counted` is False.
    """

    memory_bytes: int | None
    memory_used: int
    pids_max: int | None
    pids_current: int
    cpu_quota_us: int | None
    cpu_period_us: int
    cpu_weight: int
    oom_kills: int
    swap_counted: bool
    swap_bytes: int | None
    frozen: bool


class Cgroup:
    """The group of one sandbox in every hierarchy that holds a needed controller."""

    def __init__(self, names: HostNames, tree: CgroupTree | None = None) -> None:
        self.names = names
        self.tree = host_tree() if tree is None else tree
        self._path = names.cgroup
        self._by_controller = {
            name: (at.version, f"{at.place}/{self._path}")
            for name, at in self.tree.controllers.items()
        }
        versions = {name: version for name, (version, _) in self._by_controller.items()}
        self._v1 = GroupV1({n: path for n, (v, path) in self._by_controller.items() if v == 1})
        self._v2 = GroupV2(f"{self.tree.unified}/{self._path}") if 2 in versions.values() else None
        self._versions = versions
        self._top = self._group_of_all()

    def _group_of_all(self) -> GroupV1 | GroupV2:
        """Where the CPU controller is: the group that every sandbox of this user lies in."""
        at = self.tree.controllers.get("cpu")
        if at is None:
            return GroupV1({})
        top = f"{at.place}/{Path(self._path).parts[0]}"
        return GroupV2(top) if at.version == 2 else GroupV1({"cpu": top})

    @property
    def folders(self) -> tuple[str, ...]:
        """This sandbox's group in each hierarchy, as a path."""
        return tuple(f"{folder}/{self._path}" for folder in self.tree.folders())

    def procs_files(self) -> tuple[str, ...]:
        """What a process writes to in order to join."""
        return tuple(f"{folder}/cgroup.procs" for folder in self.folders)

    def hierarchies(self) -> dict[str, str]:
        """The name of each hierarchy by this sandbox's group in it."""
        named = self.tree.hierarchies().items()
        return {f"{folder}/{self._path}": name for folder, name in named}

    def exists(self) -> bool:
        """Whether it is there in any hierarchy."""
        return any(os.path.isdir(folder) for folder in self.folders)

    def create(self, limits: Limits) -> None:
        """Makes it in every hierarchy and limits it. Raises ConfinementError(layer="cgroup").

        What it made is gone again when it raises: a later hierarchy may be read-only.
        """
        self.tree.check()
        existed = self.exists()
        try:
            self.make()
            self.apply(limits)
        except ConfinementError:
            if not existed:
                with contextlib.suppress(HostError):
                    self.remove()
            raise

    def make(self) -> None:
        """The group alone, without limits."""
        with self._explained("create"):
            for place in self.tree.folders():
                self._make_while_others_remove(place)

    def _make_while_others_remove(self, start: str) -> None:
        """The last sandbox to leave removes the folders above, perhaps just now."""
        for _ in range(10):
            with contextlib.suppress(FileNotFoundError):
                return self._make(start)
        return self._make(start)

    def _make(self, start: str) -> None:
        place = Path(start)
        # a v2 child has only the controllers its parent passes on
        passed_on = [name for name, version in self._versions.items() if version == 2]
        for part in Path(self._path).parts:
            if passed_on and start == self.tree.unified:
                (place / "cgroup.subtree_control").write_text(
                    " ".join(f"+{name}" for name in passed_on)
                )
            place /= part
            place.mkdir(mode=0o755, exist_ok=True)

    def apply(self, limits: Limits) -> None:
        """Sets every limit and reads each back. Raises ConfinementError(layer="cgroup")."""
        with self._explained("limit", "memory"):
            self._of("memory").set_memory(limits.memory_bytes)
        with self._explained("limit", "pids"):
            self._of("pids").set_pids(limits.pids_max)
        with self._explained("limit", "cpu"):
            self._of("cpu").set_cpu(limits.cpu_quota_us, limits.cpu_period_us)
            if self._top.cpu_weight != self.weight(limits):
                self._top.set_cpu_weight(self.weight(limits))
        with self._explained("read"):
            found = self.read()
        wanted = {
            # the kernel counts whole pages
            "memory_bytes": limits.memory_bytes // PAGE * PAGE,
            "pids_max": limits.pids_max,
            "cpu_quota_us": limits.cpu_quota_us,
            "cpu_period_us": limits.cpu_period_us,
            "cpu_weight": self.weight(limits),
        }
        if found.swap_counted:
            wanted["swap_bytes"] = 0
        for name, value in wanted.items():
            if getattr(found, name) != value:
                raise ConfinementError(
                    f"the kernel keeps {name} at {getattr(found, name)} instead of {value}",
                    layer="cgroup",
                    where=self._path,
                )

    def weight(self, limits: Limits) -> int:
        """What the group of all sandboxes must weigh, as its version of cgroups counts."""
        return self._top.default_weight // limits.cpu_weight_part

    def attach(self, pid: int) -> None:
        """Moves a process with all its threads into the group, in every hierarchy."""
        with self._explained("join"):
            for path in self.procs_files():
                Path(path).write_text(str(pid))

    def procs(self) -> list[int]:
        """Processes in any of its hierarchies, sorted; empty when it does not exist."""
        found: set[int] = set()
        for folder in self.folders:
            found.update(members(folder))
        return sorted(found)

    def read(self) -> GroupFacts:
        """Raises FileNotFoundError when the group is gone."""
        memory, pids = self._of("memory"), self._of("pids")
        quota, period = self._of("cpu").cpu
        return GroupFacts(
            memory_bytes=memory.memory_limit,
            memory_used=memory.memory_used,
            pids_max=pids.pids_max,
            pids_current=pids.pids_current,
            cpu_quota_us=quota,
            cpu_period_us=period,
            cpu_weight=self._top.cpu_weight,
            oom_kills=memory.oom_kills,
            swap_counted=memory.counts_swap,
            swap_bytes=memory.swap_limit,
            frozen=self._v1.frozen if "freezer" in self._by_controller else self._of("pids").frozen,
        )

    def _of(self, controller: str) -> GroupV1 | GroupV2:
        if controller not in self._versions:
            self.tree.check()
        if self._versions[controller] == 2 and self._v2 is not None:
            return self._v2
        return self._v1

    def kill(self, timeout: float = 5.0) -> None:
        """Kills every process in the group and waits until it is empty.

        Returns at once when there is nothing to kill. Raises HostError after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            # before looking for processes: one that is just forking is caught in the next round
            self.freeze(True)
            alive = self.procs()
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._v2 is not None:
                with contextlib.suppress(FileNotFoundError):
                    self._v2.kill()
            self.freeze(False)  # on v1 a frozen process cannot even die
            if not alive:
                return
            if time.monotonic() > deadline:
                raise HostError(f"processes {alive} do not die", where=self._path)
            time.sleep(0.002)

    def freeze(self, frozen: bool) -> None:
        """Stops or thaws everything in the group; nothing happens when it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            if "freezer" in self._by_controller:
                self._v1.freeze(frozen)
            elif self._v2 is not None:
                self._v2.freeze(frozen)

    def remove(self) -> None:
        """Removes it from every hierarchy, and the instance's group when it was the last one.

        Raises HostError while processes are in it: kill first.
        """
        for folder in self.folders:
            _remove_group(folder, self._path)
            for parent in (Path(folder).parent, Path(folder).parent.parent):
                with contextlib.suppress(OSError):  # others are in it
                    parent.rmdir()

    @contextmanager
    def _explained(self, act: str, controller: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            named = os.fsdecode(error.filename or "")
            guilty = [controller] if controller else [n for n in LIMITING if f"/{n}/" in named]
            which = f" (controller {guilty[0]})" if guilty else ""
            fix = ""
            if error.errno == errno.EROFS:
                fix = (
                    "the cgroup file system is mounted read-only: remount it or leave the container"
                )
            elif error.errno == errno.EBUSY and named.endswith("cgroup.subtree_control"):
                fix = (
                    "a group with processes of its own passes no controller on (cgroups(7)): move "
                    f"those in {os.path.dirname(named)}/cgroup.procs to a group below it"
                )
            raise ConfinementError(
                f"cannot {act} the control group{which}: {named or self._path}: {error.strerror}",
                layer="cgroup",
                where=self._path,
                fix=fix,
            ) from error


def members(folder: str, file: str = "cgroup.procs") -> list[int]:
    """Processes in one group (threads, from the v1 file `tasks`); empty when it is gone."""
    try:
        with open(f"{folder}/{file}", "rb") as opened:
            return [int(number) for number in opened.read().split()]
    except (FileNotFoundError, ProcessLookupError):  # ENODEV: removed while it was open
        return []
    except OSError as error:
        if error.errno == errno.ENODEV:
            return []
        raise


def list_sandboxes(instance: str, tree: CgroupTree | None = None) -> tuple[str, ...]:
    """Names of this instance's sandboxes that have a group in any hierarchy, sorted."""
    parent = Path(HostNames(instance, "x").cgroup).parent
    found: set[str] = set()
    for place in (host_tree() if tree is None else tree).folders():
        with contextlib.suppress(FileNotFoundError):
            found.update(each.name for each in (Path(place) / parent).iterdir() if each.is_dir())
    return tuple(sorted(found))


def _remove_group(folder: str, shown: str) -> None:
    deadline = time.monotonic() + _BUSY_WAIT
    while True:
        try:
            os.rmdir(folder)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or members(folder) or time.monotonic() > deadline:
                raise HostError(f"cannot remove {folder}: {error.strerror}", where=shown) from error
            time.sleep(0.002)  # a killed process leaves its group a moment after its parent hears
