"""The files of one control group in one hierarchy, v1 and v2, behind one small interface.

v1 goes through cgroupspy: its controllers where it has them, its file interfaces for the pids
controller it lacks. v2 it does not have; there the files are read and written here. A limit of None
is no limit. Nothing here decides which group or which limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cgroupspy.controllers import Controller, CpuController, MemoryController
from cgroupspy.interfaces import BaseFileInterface

# a v1 memory limit that was never set reads as the largest multiple of a page in 63 bits
_V1_NO_LIMIT = 1 << 62


class _MaxFile(BaseFileInterface):  # type: ignore[misc]
    """An integer or the word `max`."""

    def sanitize_get(self, value: str) -> int | None:
        return None if value == "max" else int(value)

    def sanitize_set(self, value: int | None) -> str:
        return "max" if value is None else str(value)


class _WordFile(BaseFileInterface):  # type: ignore[misc]
    """Text as it is."""


class _PidsController(Controller):  # type: ignore[misc]
    max = _MaxFile("pids.max")
    current = _MaxFile("pids.current", readonly=True)


class _FreezerController(Controller):  # type: ignore[misc]
    state = _WordFile("freezer.state")


class _OomController(MemoryController):  # type: ignore[misc]
    """cgroupspy reads oom_control as a flag or a dictionary; the count of kills is in it."""

    oom_control = _WordFile("memory.oom_control")


@dataclass(frozen=True, slots=True)
class _Node:
    """What a cgroupspy controller needs of a node: where it is. Its own Node wants a whole tree."""

    full_path: bytes


class GroupV1:
    """Groups in v1 hierarchies; `folders` maps a controller to this sandbox's group in it."""

    default_weight = 1024

    def __init__(self, folders: dict[str, str]) -> None:
        def controller(kind: Any, name: str) -> Any:
            return kind(_Node(folders[name].encode())) if name in folders else None

        self._memory = controller(_OomController, "memory")
        self._pids = controller(_PidsController, "pids")
        self._cpu = controller(CpuController, "cpu")
        self._freezer = controller(_FreezerController, "freezer")
        self._folders = folders

    @property
    def memory_limit(self) -> int | None:
        limit = int(self._memory.limit_in_bytes or _V1_NO_LIMIT)
        return None if limit >= _V1_NO_LIMIT else limit

    def set_memory(self, limit: int) -> None:
        """Memory and, where the kernel counts it, memory plus swap: no way out through swap.

        The kernel keeps the second at or above the first, so their order depends on the direction.
        """
        if not self.counts_swap:
            self._memory.limit_in_bytes = limit
            return
        before = self.memory_limit
        if before is None or limit < before:
            self._memory.limit_in_bytes = limit
            self._memory.memsw_limit_in_bytes = limit
        else:
            self._memory.memsw_limit_in_bytes = limit
            self._memory.limit_in_bytes = limit

    @property
    def counts_swap(self) -> bool:
        return Path(self._folders["memory"], "memory.memsw.limit_in_bytes").exists()

    @property
    def swap_limit(self) -> int | None:
        """Bytes of swap beyond the memory limit; None when it is not limited or not counted."""
        if not self.counts_swap or self.memory_limit is None:
            return None
        total = int(self._memory.memsw_limit_in_bytes or _V1_NO_LIMIT)
        return None if total >= _V1_NO_LIMIT else max(0, total - self.memory_limit)

    @property
    def memory_used(self) -> int:
        return int(self._memory.usage_in_bytes)

    @property
    def oom_kills(self) -> int:
        return _count(self._memory.oom_control, "oom_kill")

    @property
    def pids_max(self) -> int | None:
        limit: int | None = self._pids.max
        return limit

    def set_pids(self, limit: int) -> None:
        self._pids.max = limit

    @property
    def pids_current(self) -> int:
        return int(self._pids.current)

    @property
    def cpu(self) -> tuple[int | None, int]:
        """(quota or None, period), microseconds."""
        return self._cpu.cfs_quota_us, int(self._cpu.cfs_period_us)

    def set_cpu(self, quota: int, period: int) -> None:
        self._cpu.cfs_quota_us = None  # else a period may not fit the old quota for a moment
        self._cpu.cfs_period_us = period
        self._cpu.cfs_quota_us = quota

    @property
    def cpu_weight(self) -> int:
        return int(self._cpu.shares)

    def set_cpu_weight(self, weight: int) -> None:
        _never_idle(Path(self._folders["cpu"]))
        self._cpu.shares = weight

    def freeze(self, frozen: bool) -> None:
        self._freezer.state = "FROZEN" if frozen else "THAWED"

    @property
    def frozen(self) -> bool:
        """Also while it is still FREEZING: some of its threads already stand still."""
        return bool(self._freezer.state != "THAWED")


class GroupV2:
    """One group of the unified tree (Documentation/admin-guide/cgroup-v2.rst)."""

    counts_swap = True
    default_weight = 100

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _read(self, name: str) -> str:
        return (self._folder / name).read_text().strip()

    def _write(self, name: str, value: object) -> None:
        (self._folder / name).write_text(str(value))

    @property
    def memory_limit(self) -> int | None:
        return _number(self._read("memory.max"))

    def set_memory(self, limit: int) -> None:
        self._write("memory.max", limit)
        if (self._folder / "memory.swap.max").exists():  # absent in a kernel without swap
            self._write("memory.swap.max", 0)

    @property
    def swap_limit(self) -> int | None:
        try:
            return _number(self._read("memory.swap.max"))
        except FileNotFoundError:
            return 0

    @property
    def memory_used(self) -> int:
        return int(self._read("memory.current"))

    @property
    def oom_kills(self) -> int:
        return _count(self._read("memory.events"), "oom_kill")

    @property
    def pids_max(self) -> int | None:
        return _number(self._read("pids.max"))

    def set_pids(self, limit: int) -> None:
        self._write("pids.max", limit)

    @property
    def pids_current(self) -> int:
        return int(self._read("pids.current"))

    @property
    def cpu(self) -> tuple[int | None, int]:
        """(quota or None, period), microseconds."""
        quota, period = self._read("cpu.max").split()
        return _number(quota), int(period)

    def set_cpu(self, quota: int, period: int) -> None:
        self._write("cpu.max", f"{quota} {period}")

    @property
    def cpu_weight(self) -> int:
        return int(self._read("cpu.weight"))

    def set_cpu_weight(self, weight: int) -> None:
        _never_idle(self._folder)
        self._write("cpu.weight", weight)

    def freeze(self, frozen: bool) -> None:
        self._write("cgroup.freeze", int(frozen))

    @property
    def frozen(self) -> bool:
        return self._read("cgroup.freeze") == "1"

    def kill(self) -> None:
        """Every process in the group and below, forks in progress included (Linux 5.14)."""
        self._write("cgroup.kill", 1)


def _never_idle(folder: Path) -> None:
    """A group that runs only when nobody else does has no weight that could be set."""
    idle = folder / "cpu.idle"  # since Linux 5.15
    if idle.exists() and idle.read_text().strip() != "0":
        idle.write_text("0")


def _number(text: str) -> int | None:
    return None if text == "max" else int(text)


def _count(text: str, key: str) -> int:
    """The number behind `key` in lines of "key number"; 0 when the kernel does not count it."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0
