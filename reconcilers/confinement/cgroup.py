"""The control group of one sandbox, over cgroup v1 and v2 alike: create, limit, join, kill, remove.

Every limit is read back after it was written: what the kernel rounded or ignored is an error, not a
log line. It must never touch a group outside `box/` (its tests use their own names inside it).
"""

from __future__ import annotations

from dataclasses import dataclass

from reconcilers.confinement.policy import Limits
from specs.names import HostNames


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What the kernel says now. A limit that is not set is None. `oom_kills` counts since creation.

    `memory_bytes` is the limit, `memory_used` what is charged now, both in bytes.
    """

    memory_bytes: int | None
    memory_used: int
    pids_max: int | None
    pids_current: int
    cpu_quota_us: int | None
    cpu_period_us: int
    oom_kills: int


class Cgroup:
    """The group of one sandbox in every hierarchy that holds a needed controller."""

    def __init__(self, names: HostNames, tree: object | None = None) -> None:
        self.names = names

    def exists(self) -> bool: ...
    def create(self, limits: Limits) -> None: ...
    def apply(self, limits: Limits) -> None: ...
    def attach(self, pid: int) -> None: ...
    def procs(self) -> list[int]: ...
    def read(self) -> GroupFacts: ...
    def kill(self, timeout: float = 5.0) -> None: ...
    def remove(self) -> None: ...
    def watch_oom(self) -> int:
        """A descriptor that becomes readable when the kernel killed for memory; the caller owns it,
        drains it with os.read(fd, 4096) and looks at `read().oom_kills`."""


def list_sandboxes(instance: str) -> tuple[str, ...]:
    """Names of this instance's sandboxes that have a group in any hierarchy, sorted."""
    raise NotImplementedError
