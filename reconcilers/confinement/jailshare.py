"""Layers of the launcher that bring a host directory into the jail of a helper process.

Part of the launcher process: standard library and our system calls only. The directory arrives as a
descriptor; its path is never used, so nothing can be put in its place after it was judged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Iterator

from reconcilers.confinement import syscalls
from reconcilers.confinement.document import Document, Share

ATTRIBUTES = (
    syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC
)  # noexec binds the host side alone: a guest's programs are run by the guest's kernel
PROC = "/pid"
# virtiofsd opens /proc/self/fd, and ends when it cannot read how many files the host (the one in C)
# or a process (the one in Rust) may open; its jail's limit stays, and the host's own are nothing to
# show
_OPEN_FILES = ("file-max", "nr_open")
_MANY = b"1048576\n"
_REFUSED_BY_IDMAP = (errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP)


def stand_in_share(document: Document) -> None:
    """Makes the directory the working directory, which is how it comes along into the next mount
    namespace: unshare(CLONE_NEWNS) leads it over to its copy there, and looks up no path.
    """
    if len(document.shares) > 1:
        raise OSError(errno.E2BIG, "one shared directory is all that comes along")
    for share in document.shares:
        os.fchdir(share.descriptor)


def clone_shares(document: Document) -> list[tuple[Share, int]]:
    """A detached mount of every shared directory, without what is mounted below it.

    Before the mount namespace is left, as for the files of the root. An ordinary user has left it
    already, because only the owner of a mount namespace may copy its mounts: he stands in the
    directory.
    """
    if document.user_namespace != "first":
        return [(share, _clone(share, share.descriptor)) for share in document.shares]
    found = []
    for share in document.shares:
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        meant, stood = os.fstat(share.descriptor), os.fstat(here)
        if (meant.st_dev, meant.st_ino) != (stood.st_dev, stood.st_ino):
            raise OSError(errno.ESTALE, "is not the directory that was opened", share.inside)
        try:
            found.append((share, _clone(share, here)))
        except OSError as error:
            if error.errno == errno.EINVAL:  # open_tree(2): a mount there is locked to its parent
                why = f"something is mounted below it, or it is gone: {error.strerror}"
                raise OSError(error.errno, why) from error
            raise
        os.close(here)
        os.chdir("/")
    return found


def _clone(share: Share, source: int) -> int:
    if not stat.S_ISDIR(os.fstat(source).st_mode):
        raise OSError(errno.ENOTDIR, "not a directory", share.inside)
    tree = syscalls.open_tree(source)
    attributes = ATTRIBUTES | (0 if share.writable else syscalls.MOUNT_ATTR_RDONLY)
    if share.owner is None:
        syscalls.mount_setattr(tree, attributes)
        return tree
    with _showing(share.owner, share.shown) as users:
        try:
            syscalls.mount_setattr(tree, attributes, users)
        except OSError as error:
            if error.errno in _REFUSED_BY_IDMAP:
                why = "its file system cannot show files under another owner (idmapped mount)"
                raise OSError(error.errno, f"{why}: {os.strerror(error.errno)}") from error
            raise
    return tree


@contextlib.contextmanager
def _showing(owner: tuple[int, int], shown: tuple[int, int]) -> Iterator[int]:
    """A user namespace that maps exactly `owner` to `shown`: mount_setattr(2), "ID-mapped mounts".

    A namespace lives as long as a process in it or a descriptor: a child waits in it meanwhile.
    """
    ready, ready_end = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            os.write(ready_end, b"r")
            signal.pause()
        finally:
            os._exit(1)
    os.close(ready_end)
    try:
        if os.read(ready, 1) != b"r":
            raise OSError(errno.EPERM, "no user namespace can be made for an idmapped mount")
        write_map(child, "uid_map", ((owner[0], shown[0], 1),))
        write_map(child, "gid_map", ((owner[1], shown[1], 1),))
        users = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        yield users
    finally:
        os.close(users)


def write_map(pid: int, name: str, rows: tuple[tuple[int, int, int], ...]) -> None:
    """One write, as user_namespaces(7) demands."""
    text = "".join(f"{inside} {outside} {count}\n" for inside, outside, count in rows)
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def attach_shares(stage: str, shares: list[tuple[Share, int]]) -> None:
    """Each on a new directory of the root that is being built below `stage`."""
    for share, tree in shares:
        target = stage + share.inside
        os.makedirs(target, mode=0o755)
        descriptor = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        syscalls.move_mount(tree, descriptor, path=share.inside)
        os.close(descriptor)
        os.close(tree)


def make_proc(stage: str) -> None:
    """Folders for `mount_proc`, and a /proc that leads there."""
    os.mkdir(stage + PROC, 0o555)
    os.makedirs(f"{stage}/proc/sys/fs", 0o755)
    os.symlink(f"{PROC}/self", f"{stage}/proc/self")
    create = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for name in _OPEN_FILES:
        descriptor = os.open(f"{stage}/proc/sys/fs/{name}", create, 0o444)
        os.write(descriptor, _MANY)
        os.close(descriptor)


def mount_proc(stage: str, at: str = PROC) -> None:
    """On `at` below `stage`, by the first process of the pid namespace, while it still has the
    rights of whoever builds the jail.

    subset=pid (Documentation/filesystems/proc.rst): its own processes, no file about the host.
    """
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC | syscalls.MS_RDONLY
    try:
        syscalls.mount("proc", stage + at, "proc", flags, "subset=pid")
    except PermissionError as error:  # mount_namespaces(7): no less may be hidden than before
        why = "no procfs can be mounted where parts of /proc are hidden, as in many containers"
        raise OSError(error.errno, f"{why}: {error.strerror}") from error


def mounted() -> list[tuple[int, str, str]]:
    """(mount id, path, options) of every mount of the jail, read inside it (proc(5), mountinfo)."""
    found = []
    # Names of the host stand there as any bytes; of what ends a line only \n is escaped.
    with open(PROC + "/self/mountinfo", encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            words = line.split(" ")
            found.append((int(words[0]), words[4], words[5]))
    return found
