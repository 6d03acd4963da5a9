"""Network namespaces by name: made, entered for one job, removed.

A namespace is kept by a mount on a file in /run/netns, as ip-netns(8) does it, so that it outlives
the controller and anybody can look at it with `ip -n NAME`. Work inside one is done by a thread
made for it, which enters the namespace and ends there: no thread that lives on ever changes its
own. It must not know what is put into a namespace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from reconcilers.confinement import syscalls
from specs.errors import HostError

T = TypeVar("T")
FOLDER = Path("/run/netns")
_SYSCTL_MAX = 4096  # bytes; every one that is asked for is a number
_NOBODY = 0o000  # a mount point; nobody reads or writes it


def path_of(name: str) -> Path:
    return FOLDER / name


def exists(name: str) -> bool:
    """Whether a namespace is mounted there; a file without one is left over, not a namespace."""
    return inode(name) is not None


def inode(name: str) -> int | None:
    """The number that /proc/PID/ns/net shows for it; None when there is none."""
    try:
        facts = os.stat(path_of(name), follow_symlinks=False)
    except OSError:
        return None
    return facts.st_ino if facts.st_dev == os.stat("/proc/self/ns/net").st_dev else None


def create(name: str) -> None:
    """Make an empty one and keep it under `name`; what is there already stays. Raises HostError."""
    if exists(name):
        return
    try:
        _share_folder()
        path = path_of(name)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, _NOBODY))

        def keep() -> None:
            syscalls.unshare(syscalls.CLONE_NEWNET)
            syscalls.mount("/proc/thread-self/ns/net", str(path), None, syscalls.MS_BIND)

        in_thread(keep)
    except OSError as error:
        raise HostError(
            f"the network namespace {name} cannot be made: {error.strerror}",
            fix="`box doctor` lists what this host lacks",
        ) from error


def _share_folder() -> None:
    """As ip-netns(8) does: a removal must reach every mount namespace that has a copy."""
    FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        syscalls.mount("none", str(FOLDER), None, syscalls.MS_SHARED | syscalls.MS_REC)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: not a mount point yet
            raise
        syscalls.mount(str(FOLDER), str(FOLDER), None, syscalls.MS_BIND | syscalls.MS_REC)
        syscalls.mount("none", str(FOLDER), None, syscalls.MS_SHARED | syscalls.MS_REC)


def remove(name: str) -> None:
    """Let go of it; the kernel ends it, with its links, when no process is in it any more."""
    path = path_of(name)
    while True:
        try:
            syscalls.umount2(str(path), syscalls.MNT_DETACH)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise HostError(f"{path} cannot be unmounted: {error.strerror}") from error
            break
    path.unlink(missing_ok=True)


def names() -> list[str]:
    """Everything in the folder, whosever it is."""
    try:
        return sorted(os.listdir(FOLDER))
    except FileNotFoundError:
        return []


def open_space(name: str) -> int:
    """A descriptor of the namespace, the caller's to close. Raises HostError."""
    try:
        return os.open(path_of(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise HostError(f"the network namespace {name} is gone") from error


def inside(name: str, work: Callable[[], T]) -> T:
    """Do `work` in the namespace and return its result; what it raises is raised here.

    Sockets that `work` opens, programs that it starts and /proc/sys/net belong to the namespace.
    """
    descriptor = open_space(name)

    def enter() -> T:
        syscalls.setns(descriptor, syscalls.CLONE_NEWNET)
        return work()

    try:
        return in_thread(enter)
    finally:
        os.close(descriptor)


def elsewhere(work: Callable[[], T]) -> T:
    """Do `work` in an empty namespace that is gone afterwards."""

    def leave() -> T:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        return work()

    return in_thread(leave)


def in_thread(work: Callable[[], T]) -> T:
    """Do `work` in a thread that ends with it."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def read_sysctl(name: str) -> str | None:
    """A value under /proc/sys/net of the calling thread's namespace; None where it is not known."""
    try:
        descriptor = os.open(f"/proc/sys/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, _SYSCTL_MAX).decode("ascii", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def write_sysctl(name: str, value: str) -> None:
    """Raises HostError."""
    try:
        Path("/proc/sys/net", name).write_text(value)
    except OSError as error:
        raise HostError(f"net.{name.replace('/', '.')} cannot be set: {error.strerror}") from error
