"""Control groups read with own code, v1 and v2: which group a thread is in, and what it allows."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

V1_NO_LIMIT = 1 << 62  # v1 shows "no limit" as a page-aligned number near 2**63


@dataclass(frozen=True)
class Limits:
    """What the groups of one process allow; None is no limit. CPU is in processors."""

    memory: int | None
    swap: int | None
    pids: int | None
    cpus: float | None
    swap_counted: bool


def mounted() -> list[tuple[frozenset[str], Path, str]]:
    """(controllers, mount point, root of the mount) of each hierarchy; v2 has the name "v2"."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        kind, options = words[words.index("-") + 1], words[-1].split(",")
        if kind == "cgroup":
            found.append((frozenset(options), Path(words[4]), words[3]))
        elif kind == "cgroup2":
            found.append((frozenset({"v2"}), Path(words[4]), words[3]))
    return found


def folders(proc: str) -> dict[str, Path]:
    """Controller ("memory", "pids", ...; "v2") to the group's folder, for /proc/PID[/task/TID]."""
    where = {}
    for line in Path(proc, "cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        wanted = {"v2"} if number == "0" and not names else set(names.split(","))
        for have, point, root in mounted():
            if wanted <= have:
                inside = path.removeprefix(root if root != "/" else "")
                for name in wanted:
                    where[name] = point / inside.lstrip("/")
    return where


def of_instance(instance: str) -> list[Path]:
    """Every group folder named after an instance, deepest first."""
    if not instance:
        return []
    tops = {found for _, point, _ in mounted() for found in point.glob(f"*/{instance}")}
    tops |= {found for _, point, _ in mounted() for found in _deeper(point, instance)}
    found: set[Path] = set()
    for top in tops:
        for folder, _, _ in os.walk(top):
            found.add(Path(folder))
    return sorted(found, key=lambda path: -len(path.parts))


def _deeper(point: Path, instance: str) -> list[Path]:
    """A delegated subtree holds the instance's folder somewhere below (ordinary users)."""
    if os.geteuid() == 0:
        return []
    found = []
    for folder, inside, _ in os.walk(point):
        if instance in inside:
            found.append(Path(folder, instance))
        if len(Path(folder).relative_to(point).parts) > 6:
            inside.clear()
    return found


def members(folder: Path) -> list[int]:
    """PIDs in a group; empty when it is gone."""
    with contextlib.suppress(OSError):
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    return []


def limits(pid: int) -> Limits:
    """The limits of the groups a process is in, each the tightest on the way to the root."""
    at = folders(f"/proc/{pid}")
    memory = _tightest(at, "memory", "memory.limit_in_bytes", "memory.max")
    pids = _tightest(at, "pids", "pids.max", "pids.max")
    swap_file = at.get("memory", Path("/nowhere")) / "memory.memsw.limit_in_bytes"
    if "memory" in at:
        both = _number(swap_file)
        counted = swap_file.exists()
        swap = both - memory if both is not None and memory is not None else None
    else:
        counted = (at.get("v2", Path("/nowhere")) / "memory.swap.max").exists()
        swap = _tightest(at, "", "", "memory.swap.max")
    return Limits(memory, swap, pids, _cpus(at), counted)


def _tightest(at: dict[str, Path], controller: str, v1: str, v2: str) -> int | None:
    folder, file = (at[controller], v1) if controller in at else (at.get("v2"), v2)
    if folder is None:
        return None
    found = [number for each in _upwards(folder) if (number := _number(each / file)) is not None]
    return min(found, default=None)


def _cpus(at: dict[str, Path]) -> float | None:
    found = []
    if "cpu" in at:
        for folder in _upwards(at["cpu"]):
            quota = _number(folder / "cpu.cfs_quota_us")
            period = _number(folder / "cpu.cfs_period_us")
            if quota is not None and period and quota > 0:
                found.append(quota / period)
    elif "v2" in at:
        for folder in _upwards(at["v2"]):
            with contextlib.suppress(OSError, ValueError):
                quota_text, period_text = (folder / "cpu.max").read_text().split()
                if quota_text != "max":
                    found.append(int(quota_text) / int(period_text))
    return min(found, default=None)


def weight(pid: int) -> tuple[float, Path] | None:
    """The lightest of the groups around the one that this process is in, as a part of what the
    kernel lets a group weigh by itself, and the outermost of that weight; None where none says.
    """
    at = folders(f"/proc/{pid}")
    folder, file, usual = at.get("v2"), "cpu.weight", 100  # cgroups(7)
    if "cpu" in at:
        folder, file, usual = at["cpu"], "cpu.shares", 1024  # sched-design-CFS
    if folder is None:
        return None
    around = reversed(_upwards(folder)[1:-1])  # what the whole host weighs says nothing
    found = [(n / usual, each) for each in around if (n := _number(each / file)) is not None]
    return min(found, key=lambda each: each[0], default=None)


def _upwards(folder: Path) -> list[Path]:
    tops = {point for _, point, _ in mounted()}
    way = [folder]
    while way[-1] not in tops and way[-1] != way[-1].parent:
        way.append(way[-1].parent)
    return way


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    if text == "max" or not text.lstrip("-").isdigit():
        return None
    value = int(text)
    return None if value >= V1_NO_LIMIT else value
