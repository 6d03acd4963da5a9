"""One microVM: started in its jail, found again, stopped.

Starting is a straight line: runtime directory, sockets, disks, launch record without a PID, jail,
launch record with one. Whatever fails on the way closes what was opened; what is left behind by a
killed controller is found by cgroup and name.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import secrets
import shutil
import signal
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from reconcilers import backend as slots
from reconcilers import disk as disks
from reconcilers import launchrecord, procfs, sockets
from reconcilers.backend import Backend, HostFacts
from reconcilers.boot import Boot
from reconcilers.confinement import filters
from reconcilers.confinement.following import end
from reconcilers.confinement.policy import Confinement
from reconcilers.confinement.rootview import root_files
from reconcilers.confinement.seccomp import load_profile
from reconcilers.confinement.sharepolicy import ROLE
from reconcilers.confinement.start import Launched, LaunchRequest, launch
from reconcilers.facts import Disk, Image
from reconcilers.helpers import Serving, serve
from reconcilers.images.about import environment_of
from reconcilers.images.verify import open_verified
from reconcilers.inthread import to_end
from reconcilers.launched import image_of, settings_of
from reconcilers.launchrecord import HelperRecord, LaunchRecord
from reconcilers.layout import Layout
from reconcilers.mounts import Directory
from reconcilers.network.usernetworks import UserNetworks
from reconcilers.procfs import alive, host_boot_id
from reconcilers.wire import Wiring, connect
from specs.boxfile import Boxfile
from specs.errors import HostError
from specs.names import HostNames

TOKEN_BYTES = 32
FILTER_SECONDS = 10.0


@dataclass(frozen=True)
class Start:
    """Everything one start needs, decided beforehand."""

    box: Boxfile
    names: HostNames
    key: str
    accel: str
    confinement: Confinement
    image: Image
    disk: Disk
    boot: Boot
    backend: Backend
    host: HostFacts
    # a tap and the namespace it is in, the caller's; None for a sandbox without a network
    tap: tuple[int, int] | None = None
    # the networks of an ordinary user, who has nobody else's: the tap is made with the VMM
    wire: UserNetworks | None = None
    # each mount with the descriptor of its directory, which stays the caller's
    shares: tuple[tuple[Directory, int], ...] = ()
    # the archive of a transfer, the caller's, and whether it is written; else it is read
    archive: tuple[int, bool] | None = None
    # the disk that the other one is compared with
    base: Disk | None = None
    # number of the layer that those above it are merged into, by a VMM without a guest
    merge_into: int | None = None
    # the disk takes what the guest writes to its root
    building: bool = False


async def start(layout: Layout, wanted: Start) -> tuple[LaunchRecord, int]:
    """Launch the VMM; returns its record and the read end of its standard error, both the caller's
    to keep.

    Raises ConfinementError naming the layer, or HostError. Nothing of the attempt is left running.
    """
    name = wanted.names.sandbox
    folder = layout.sandbox_runtime(name)
    make_private_directory(layout.runtime)
    make_private_directory(folder)
    record_path = layout.launch_record(name)
    command = _command(wanted)
    with ExitStack() as opened:
        # In a thread: it reads the whole image.
        image = await to_end(partial(open_verified, wanted.image), unwanted=os.close)
        opened.callback(os.close, image)
        descriptors = _descriptors(opened, layout, wanted, image)
        # Copies: the shared ones are closed when another pass finds a new kernel.
        binds = {
            slots.KERNEL_PATH: os.dup(wanted.boot.kernel.descriptor),
            slots.INITRD_PATH: os.dup(wanted.boot.initramfs.descriptor),
        }
        for copy in binds.values():
            opened.callback(os.close, copy)
        errors, errors_end = os.pipe2(os.O_CLOEXEC)
        opened.callback(os.close, errors_end)
        beside: list[HelperRecord] = []
        try:
            record = _unlaunched(wanted, command.argv)
            launchrecord.write(record_path, record)
            given = _Given(layout, errors_end, opened, beside, descriptors)
            space, users = await _prepare(wanted, given)
            launched = await launch(
                LaunchRequest(
                    names=wanted.names,
                    confinement=wanted.confinement,
                    argv=command.argv,
                    descriptors=descriptors,
                    binds=binds,
                    stderr_fd=errors_end,
                    netns_fd=space,
                    users_fd=users,
                    beside=frozenset(each.pid for each in beside),
                ),
                root_files=root_files(command.argv[0], kvm=wanted.accel == "kvm"),
            )
            record = replace(
                record,
                pid=launched.pid,
                start_time=launched.start_time,
                exe=launched.exe,
                at_launch=launched.at_launch,
                helpers=tuple(beside),
            )
            try:
                await _until_filtered(launched, wanted.confinement)
                launchrecord.write(record_path, record)
            except BaseException:
                end(launched.pidfd)  # a VMM that no record describes is nobody's
                raise
            os.close(launched.pidfd)  # the caller opens its own once the record is on disk
        except BaseException:
            for helper in beside:
                with contextlib.suppress(HostError):
                    await kill(helper.pid, helper.start_time)
            os.close(errors)
            with contextlib.suppress(OSError):  # sockets nobody listens on, and a token
                remove_runtime(layout, name)
            raise
    return record, errors


def _command(wanted: Start) -> slots.VmmCommand:
    marker, formats = wanted.names.marker, wanted.disk.formats
    if wanted.merge_into is not None:
        return wanted.backend.merging(marker, wanted.host, formats, wanted.merge_into)
    return wanted.backend.command(
        wanted.box,
        wanted.accel,
        marker,
        wanted.host,
        formats,
        _use_of_archive(wanted),
        wanted.base.formats if wanted.base is not None else (),
        wanted.building,
    )


def _use_of_archive(wanted: Start) -> str:
    if wanted.archive is None:
        return ""
    return "written" if wanted.archive[1] else "read"


async def _until_filtered(launched: Launched, want: Confinement) -> None:
    """An ordinary user's readback counts the VMM's filters, and its own comes when QEMU begins.

    One that ends meanwhile, or loads none, is seen by whoever looks next.
    """
    if want.user_namespace is not None:
        own = want.own_filters
        await filters.all_loaded(launched.pid, launched.at_launch, own, FILTER_SECONDS)


def _unlaunched(wanted: Start, argv: tuple[str, ...]) -> LaunchRecord:
    """The record of a VMM that is about to start: everything but the process."""
    return LaunchRecord(
        key=wanted.key,
        token=secrets.token_hex(TOKEN_BYTES),
        accel=wanted.accel,
        uid=wanted.confinement.uid,
        gid=wanted.confinement.gid,
        kernel_sha256=wanted.boot.kernel.sha256,
        kernel_release=wanted.boot.release,
        initramfs_sha256=wanted.boot.initramfs.sha256,
        image_sha256=wanted.image.sha256,
        host_boot_id=host_boot_id(),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        argv=argv,
        data_bytes=wanted.disk.made,
        settings=settings_of(wanted.box),
        image_digest=wanted.image.digest,
        image_asked=image_of(wanted.box),
        image_env=environment_of(wanted.image),
    )


@dataclass(frozen=True)
class _Given:
    """What the helpers of one start share: each adds itself to `beside`, and to `descriptors` what
    it gives the VMM, open as long as `opened`.
    """

    layout: Layout
    errors_end: int
    opened: ExitStack
    beside: list[HelperRecord]
    descriptors: dict[int, int]


async def _prepare(wanted: Start, given: _Given) -> tuple[int | None, int | None]:
    """Start the helpers of network and mounts.

    Returns the network namespace and the user namespace that the VMM is to live in, None for new
    ones.
    """
    space, users = wanted.tap[1] if wanted.tap is not None else None, None
    if wanted.wire is not None:
        names, jail, errors = wanted.names, wanted.confinement, given.errors_end
        wiring = Wiring(names, wanted.box, jail, wanted.wire, errors)
        made = await connect(wiring, given.beside, given.opened)
        given.descriptors[slots.TAP_FD], space, users = made.tap, made.space, made.users
    if wanted.shares:
        await _serve(wanted, given)
    return space, users


async def _serve(wanted: Start, given: _Given) -> None:
    """Start a helper for each mount."""
    program = load_profile(ROLE, False)
    serving = Serving(given.layout, wanted.names, wanted.confinement, program, given.errors_end)
    for directory, descriptor in wanted.shares:
        known = frozenset(each.pid for each in given.beside)
        helper, connection = await serve(serving, directory, descriptor, known, given.opened)
        given.beside.append(helper)
        given.descriptors[slots.MOUNT_FD + directory.index] = connection


def _descriptors(opened: ExitStack, layout: Layout, wanted: Start, image: int) -> dict[int, int]:
    name = wanted.names.sandbox

    def kept(descriptor: int) -> int:
        opened.callback(os.close, descriptor)
        return descriptor

    def listening(path: Path) -> int:
        return opened.enter_context(contextlib.closing(sockets.listen(path))).fileno()

    network = {slots.TAP_FD: wanted.tap[0]} if wanted.tap is not None else {}
    archive = {slots.ARCHIVE_FD: wanted.archive[0]} if wanted.archive is not None else {}
    into = wanted.merge_into
    written = None if into is None else wanted.disk.beneath[into]
    *frozen, top = map(kept, disks.open_for_vmm(wanted.disk, written))
    beneath = {slots.LAYER_FD + index: layer for index, layer in enumerate(frozen)}
    if wanted.base is not None:
        *others, base = map(kept, disks.open_for_vmm(wanted.base))
        beneath |= {slots.BASE_FD + index: layer for index, layer in enumerate((base, *others))}
    return (
        network
        | beneath
        | archive
        | {
            slots.QMP_FD: listening(layout.qmp_socket(name)),
            slots.CONSOLE_FD: listening(layout.console_socket(name)),
            slots.AGENT_FD: listening(layout.agent_socket(name)),
            slots.ROOT_FD: image,
            slots.DATA_FD: top,
        }
    )


async def wait_dead(pid: int, start_time: int, timeout: float) -> bool:
    """Wait up to `timeout` seconds for a process to end; reaps it when it is our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if alive(pid, start_time) is None:
            reap(pid)
            return True
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            async with asyncio.timeout(timeout):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(descriptor)
        reap(pid)
        return True
    finally:
        os.close(descriptor)


def reap(pid: int) -> str:
    """Collect an ended child and say how it ended; an adopted VMM is no child, its status is
    unknown.
    """
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return "unknown"
    if found == 0:
        return "running"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:  # a real-time signal: only the first and the last have a name
            return f"signal {number}"
    return f"status {os.WEXITSTATUS(status)}"


async def kill(pid: int, start_time: int) -> None:
    """SIGKILL exactly this process and wait for its end. Raises HostError when it will not die."""
    if not procfs.send(pid, start_time, signal.SIGKILL):
        reap(pid)
    elif not await wait_dead(pid, start_time, 10.0):
        raise HostError(f"the VMM (PID {pid}) does not die after SIGKILL")


def make_private_directory(path: Path) -> None:
    """Create `path` (0700) or make sure that it is a real directory of ours. Raises HostError."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    facts = path.lstat()
    if not path.is_dir() or path.is_symlink() or facts.st_uid != os.geteuid():
        raise HostError(f"{path} is not a directory of ours", fix="remove it")
    if facts.st_mode & 0o077:
        path.chmod(0o700)


def remove_runtime(layout: Layout, name: str) -> None:
    """Remove a sandbox's runtime directory; it holds only sockets and the record."""
    shutil.rmtree(layout.sandbox_runtime(name), ignore_errors=False)
