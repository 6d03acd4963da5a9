"""The caller's side of a launch: starts the jail launcher, follows its report, verifies the result.

It never applies a layer itself: that happens in the launcher, a fresh single-threaded process. It
must leave nothing behind when it raises: no process, nothing in the cgroup, no mount.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reconcilers.confinement.policy import Confinement
from reconcilers.confinement.rootview import RootFile
from specs.names import HostNames
from specs.reading import Reading


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to start and with what.

    `argv[0]` is the absolute host path of the binary. `descriptors` maps a number inside the VMM
    (3 and up) to an open descriptor of the caller; `binds` a path inside the jail to an open
    descriptor of the caller (a regular file, readable to everybody), bound read-only. `stderr_fd`
    becomes stdout and stderr; stdin is /dev/null. The caller keeps and closes its descriptors.
    """

    names: HostNames
    confinement: Confinement
    argv: tuple[str, ...]
    descriptors: Mapping[int, int]
    stderr_fd: int
    binds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launched:
    """A VMM that executes its own binary inside the jail.

    `pid` is in our pid namespace and its `pidfd` belongs to the caller. `start_time` is in clock
    ticks since boot (field 22 of /proc/PID/stat), `exe` device and inode of the binary, `seconds`
    how long the launch took. `at_launch` must be kept: readback needs it after an adoption.
    """

    pid: int
    pidfd: int
    start_time: int
    exe: tuple[int, int]
    at_launch: tuple[Reading, ...]
    seconds: float


async def launch(request: LaunchRequest, *, root_files: Sequence[RootFile]) -> Launched:
    """Starts one VMM in its jail; its cgroup must exist and be empty.

    Raises ConfinementError whose `layer` is the entry of `launch.ORDER` that failed.
    """
    raise NotImplementedError
