"""The caller's side of a launch: starts the jail launcher, follows its report, verifies the result.

It never applies a layer itself: that happens in the launcher, a fresh single-threaded process. It
must leave nothing behind when it raises: no process, nothing in the cgroup, no mount.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NoReturn

from reconcilers.confinement import atlaunch, procfile
from reconcilers.confinement.capabilities import NUMBERS
from reconcilers.confinement.cgroup import Cgroup
from reconcilers.confinement.document import Bind, Document, Share
from reconcilers.confinement.following import Follower, end
from reconcilers.confinement.policy import SHARED_PATH, Confinement, UserNamespace
from reconcilers.confinement.rootview import RootFile
from reconcilers.inthread import to_end
from specs.errors import ConfinementError
from specs.names import HostNames
from specs.reading import Reading

TIMEOUT = 20.0  # seconds; a launch takes about 0.1
_NULL_DEVICE = os.makedev(1, 3)  # Documentation/admin-guide/devices.txt


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to start and with what.

    `argv[0]` is the absolute host path of the binary. `descriptors` maps a number inside the VMM
    (3 and up) to an open descriptor of the caller; `binds` a path inside the jail to an open
    descriptor of the caller (a regular file, readable to everybody), bound read-only. `stderr_fd`
    becomes stdout and stderr; stdin is /dev/null. `netns_fd` is the network namespace to live in;
    without it a new one is made that holds nothing. `users_fd` is the user namespace to live in
    instead of a new one; it must have the maps of the confinement. `share_fd` is the directory of
    `confinement.shared`, shown as SHARED_PATH. `beside` are the processes that may
    already be in the group: helpers of the same VM. The caller keeps and closes its descriptors.
    """

    names: HostNames
    confinement: Confinement
    argv: tuple[str, ...]
    descriptors: Mapping[int, int]
    stderr_fd: int
    binds: Mapping[str, int] = field(default_factory=dict)
    netns_fd: int | None = None
    share_fd: int | None = None
    users_fd: int | None = None
    beside: frozenset[int] = frozenset()


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
    """Starts one VMM in its jail; its cgroup must exist and hold nobody but `request.beside`.

    Raises ConfinementError whose `layer` is the entry of `launch.ORDER` that failed. When it is
    cancelled it still waits for the launcher, which uses the caller's descriptors, and then ends
    what was started.
    """
    return await to_end(
        lambda: launch_blocking(request, root_files=root_files),
        unwanted=lambda launched: end(launched.pidfd),
    )


def launch_blocking(request: LaunchRequest, *, root_files: Sequence[RootFile]) -> Launched:
    """`launch` for callers without an event loop."""
    begun = time.monotonic()
    group = Cgroup(request.names)
    binds = _binds(request, root_files)
    _check_numbers(request)
    if not group.exists():
        _refuse("cgroup", f"the group {request.names.cgroup} does not exist")
    if holding := [pid for pid in group.procs() if pid not in request.beside]:
        _refuse("cgroup", f"the group {request.names.cgroup} already holds {holding}")
    with ExitStack() as opened:
        null = _null_device()
        opened.callback(os.close, null)
        follower = Follower(opened)
        maps = request.confinement.user_namespace
        uid, gid, groups = _identity(request.confinement)
        document = Document(
            argv=request.argv,
            uid=uid,
            gid=gid,
            groups=groups,
            user_namespace="join" if request.users_fd is not None else _when(maps),
            kvm=request.confinement.kvm,
            cgroup_procs=group.procs_files(),
            binds=binds,
            descriptors=(
                (0, null),
                (1, request.stderr_fd),
                (2, request.stderr_fd),
                *sorted(request.descriptors.items()),
            ),
            rlimits=request.confinement.rlimits,
            seccomp=request.confinement.seccomp.blob.hex(),
            status=follower.status_end,
            go=follower.go_end,
            netns=-1 if request.netns_fd is None else request.netns_fd,
            shares=_shares(request),
            proc=request.confinement.shared is not None,
            mapped=follower.mapped_end,
            capabilities=_capabilities(request.confinement),
            users=-1 if request.users_fd is None else request.users_fd,
            host_network=request.confinement.host_network,
            time_slice_ns=request.confinement.time_slice_ns,
        )
        held = atlaunch.held_files(document.descriptors)
        ended = follower.follow(document, time.monotonic() + TIMEOUT, group.procs, maps)
    try:
        exe = _verify(ended.pid, request.argv[0])
        table = atlaunch.mount_table(document, kvm_at=_kvm_mount(document))
        program = request.confinement.seccomp.sha256
        at_launch = atlaunch.readings(ended.ready, table, held, exe, program)
        if wrong := [each for each in at_launch if not each.ok]:
            _refuse(wrong[0].layer, f"{wrong[0].item} is {wrong[0].got}, not {wrong[0].want}")
    except BaseException:
        end(ended.pidfd)
        raise
    return Launched(
        pid=ended.pid,
        pidfd=ended.pidfd,
        start_time=ended.start_time,
        exe=exe,
        at_launch=at_launch,
        seconds=time.monotonic() - begun,
    )


def _binds(request: LaunchRequest, root_files: Sequence[RootFile]) -> tuple[Bind, ...]:
    binds = [
        Bind(inside=each.inside, host=each.host, descriptor=-1, executable=each.executable)
        for each in root_files
    ]
    binds += [
        Bind(inside=inside, host="", descriptor=source, executable=False)
        for inside, source in request.binds.items()
    ]
    seen: set[str] = set()
    for bind in binds:
        if not bind.inside.startswith("/") or os.path.normpath(bind.inside) != bind.inside:
            _refuse("root", f"not an absolute, plain path: {bind.inside!r}")
        if bind.inside in seen or bind.inside == "/dev/kvm":
            _refuse("root", f"two files for one path: {bind.inside}")
        seen.add(bind.inside)
    if request.argv[0] not in seen:
        _refuse("root", f"the binary {request.argv[0]!r} is not among the files of the root")
    return tuple(binds)


def _when(maps: UserNamespace | None) -> str:
    """Root builds the jail with its own rights, and leaves them behind afterwards."""
    if maps is None:
        return ""
    return "late" if os.geteuid() == 0 else "first"


def _shares(request: LaunchRequest) -> tuple[Share, ...]:
    shared = request.confinement.shared
    if shared is None or request.share_fd is None:
        return ()
    shown = (request.confinement.uid, request.confinement.gid)
    return (
        Share(
            inside=SHARED_PATH,
            descriptor=request.share_fd,
            writable=shared.writable,
            owner=shared.owner,
            shown=shown,
        ),
    )


def _capabilities(confinement: Confinement) -> tuple[int, ...]:
    wanted = confinement.capabilities | confinement.until_ready
    if wanted and confinement.user_namespace is None:
        _refuse("capabilities", "none are kept outside a user namespace of its own")
    return tuple(sorted(NUMBERS[name] for name in wanted))


def _check_numbers(request: LaunchRequest) -> None:
    for number in request.descriptors:
        if number < 3:
            _refuse("descriptors", f"{number} is taken by stdin, stdout or stderr")
    if request.confinement.uid == 0 or request.confinement.gid == 0:
        _refuse("identity", "a VMM never runs with host identity 0")


def _identity(want: Confinement) -> tuple[int, int, tuple[int, ...] | None]:
    """UID, GID and groups as the launcher must set them, inside the user namespace if any."""
    maps = want.user_namespace
    if maps is None:
        if os.geteuid() != 0:
            _refuse("user namespace", "only root can build a jail without one")
        return want.uid, want.gid, want.groups
    try:
        uid, gid = maps.inside_uid(want.uid), maps.inside_gid(want.gid)
        groups = tuple(map(maps.inside_gid, want.groups))
    except ValueError as error:
        _refuse("user namespace", str(error))
    if maps.setgroups:
        return uid, gid, groups
    if os.geteuid() != 0 and set(os.getgroups()) != set(want.groups):
        _refuse("identity", f"the groups {os.getgroups()} of this process would stay with it")
    return uid, gid, None


def _kvm_mount(document: Document) -> str:
    """A /dev of its own, except in a user namespace: there the host's node is bound."""
    if not document.kvm:
        return ""
    return "/dev/kvm" if document.of_user else "/dev"


def _null_device() -> int:
    """/dev/null itself. In a container image the name may be a link to anything."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open("/dev/null", flags)
    except OSError as error:
        _refuse("descriptors", f"/dev/null cannot be opened: {error.strerror}")
    found = os.fstat(descriptor)
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _NULL_DEVICE:
        os.close(descriptor)
        _refuse("descriptors", "/dev/null is not the null device")
    return descriptor


def _verify(pid: int, binary: str) -> tuple[int, int]:
    """The binary is what runs. One that ended meanwhile is the caller's to see on the pidfd."""
    wanted = procfile.identity_of(binary)
    try:
        running = procfile.identity_of(f"/proc/{pid}/exe")
    except (FileNotFoundError, ProcessLookupError):
        return wanted
    if running != wanted:
        _refuse("exec", f"the process runs another file than {binary}")
    return running


def _refuse(layer: str, message: str) -> NoReturn:
    raise ConfinementError(message, layer=layer, where=f"jail layer {layer}")
