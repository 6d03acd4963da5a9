"""Layers of the launcher that give the VMM its namespaces and a root file system of its own.

Part of the launcher process: standard library and our system calls only. A bind never follows a
symbolic link: sources are opened by descriptor with RESOLVE_NO_SYMLINKS before the namespaces are
left, targets are made new in an empty tmpfs.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping

from reconcilers.confinement import syscalls
from reconcilers.confinement.document import Bind, Document

STAGE = "/run"  # any existing directory; the new root covers it in our own mount namespace only
HOSTNAME = "box"
KVM = "/dev/kvm"
KVM_DEVICE = os.makedev(10, 232)  # Documentation/admin-guide/devices.txt
NAMESPACES = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)
READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
NO_EXEC = syscalls.MOUNT_ATTR_NOEXEC


def join_cgroups(document: Document) -> None:
    """First of all, so that everything the launcher does is charged and limited."""
    for path in document.cgroup_procs:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(descriptor, b"0")  # cgroups(7): the writing process itself
        finally:
            os.close(descriptor)


def paths_of(document: Document) -> dict[int, str]:
    """Where the files behind the caller's descriptors lie, by descriptor.

    Asked before the mount namespace is left: they must be opened anew in the next one.
    """
    given = [bind.descriptor for bind in document.binds if bind.descriptor >= 0]
    return {number: os.readlink(f"/proc/self/fd/{number}") for number in given}


def leave_user_namespace() -> None:
    """Together with the mount namespace, which then belongs to it: mounts need its rights."""
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)


def join_user_namespace(users: int) -> None:
    """One of the same user's that exists: its owner has every right in it, and so gets them all."""
    syscalls.setns(users, syscalls.CLONE_NEWUSER)
    syscalls.unshare(syscalls.CLONE_NEWNS)


def clone_binds(document: Document, sources: Mapping[int, str]) -> list[tuple[Bind, int]]:
    """A detached, read-only mount of every file of the jail root.

    Before the mount namespace is left: afterwards the mounts behind the caller's descriptors are
    foreign, and the kernel refuses to copy a foreign mount. An ordinary user has left it already,
    for only the owner of a mount namespace may copy its mounts: `sources` says where to open what
    the descriptors mean, and what is found there must be the same file.
    """
    trees = [(bind, _clone(bind, sources)) for bind in document.binds]
    if document.kvm and document.of_user:
        node = Bind(inside=KVM, host=KVM, descriptor=-1, executable=False)
        trees.append((node, _clone_kvm()))
    return trees


def _clone(bind: Bind, sources: Mapping[int, str]) -> int:
    source = bind.descriptor
    path = sources.get(source, bind.host)
    if path:
        source = _open_path(path)
    try:
        shown = path or bind.inside
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", shown)
        if bind.descriptor >= 0:
            meant = os.fstat(bind.descriptor)
            if (found.st_dev, found.st_ino) != (meant.st_dev, meant.st_ino):
                raise OSError(errno.ESTALE, "is not the file that was opened", shown)
        tree = syscalls.open_tree(source)
    finally:
        if source != bind.descriptor:
            os.close(source)
    syscalls.mount_setattr(tree, READ_ONLY if bind.executable else READ_ONLY | NO_EXEC)
    return tree


def _clone_kvm() -> int:
    """The host's own node: in a user namespace nobody may make one (mknod(2), EPERM)."""
    source = _open_path(KVM)
    try:
        found = os.fstat(source)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != KVM_DEVICE:
            raise OSError(errno.ENODEV, "not the KVM device", KVM)
        tree = syscalls.open_tree(source)
    finally:
        os.close(source)
    syscalls.mount_setattr(tree, READ_ONLY & ~syscalls.MOUNT_ATTR_NODEV | NO_EXEC)
    return tree


def _open_path(path: str) -> int:
    return syscalls.openat2(-100, path, os.O_PATH, syscalls.RESOLVE_NO_SYMLINKS)  # AT_FDCWD


def leave_namespaces(document: Document) -> None:
    """The pid namespace takes the next child; everything else takes this process at once.

    After the cgroups were joined, so that the cgroup namespace begins at the sandbox's own group.
    A network namespace that was prepared is entered; otherwise a new one holds nothing but `lo`. A
    helper that speaks for the guest on the host's network stays where it is, without any right.
    """
    if document.netns >= 0:
        syscalls.setns(document.netns, syscalls.CLONE_NEWNET)
        syscalls.unshare(NAMESPACES)
    elif document.host_network:
        syscalls.unshare(NAMESPACES)
    else:
        syscalls.unshare(NAMESPACES | syscalls.CLONE_NEWNET)
    syscalls.sethostname(HOSTNAME)  # the UTS namespace starts with a copy of the host's name


def stop_propagation() -> None:
    """No mount made here reaches the host, and none made there later reaches the jail."""
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def build_root(document: Document, trees: list[tuple[Bind, int]]) -> None:
    """An empty tmpfs, filled with the binds and, when asked for, a /dev with the KVM node alone."""
    os.umask(0o022)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    count = len(trees) + len(document.shares)
    inodes = 16 + 8 * count  # tmpfs(5): each directory and bind target is one
    syscalls.mount("box", STAGE, "tmpfs", flags, f"mode=0755,size=64k,nr_inodes={inodes}")
    for bind, tree in trees:
        target = STAGE + bind.inside
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        create = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(target, create, 0o444)
        syscalls.move_mount(tree, descriptor, path=bind.inside)
        os.close(descriptor)
        os.close(tree)
    if document.kvm and not document.of_user:
        _add_kvm_node(document)


def _add_kvm_node(document: Document) -> None:
    """A node of its own: the host's belongs to root or to a group that the VMM is not in."""
    directory = STAGE + "/dev"
    os.mkdir(directory, 0o755)
    # the only mount without nodev, and it holds nothing else
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("box-dev", directory, "tmpfs", flags, "mode=0755,size=4k,nr_inodes=4")
    os.mknod(directory + "/kvm", 0o600 | stat.S_IFCHR, KVM_DEVICE)
    os.chown(directory + "/kvm", document.uid, document.gid)
    with _opened(directory) as descriptor:
        syscalls.mount_setattr(descriptor, syscalls.MOUNT_ATTR_RDONLY)


def enter_root() -> None:
    """The old root is stacked under the new one, then detached with all that is mounted in it."""
    os.chdir(STAGE)
    syscalls.pivot_root(".", ".")  # pivot_root(2), "pivot_root(., .)"
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")
    with _opened("/") as descriptor:
        syscalls.mount_setattr(descriptor, READ_ONLY | NO_EXEC)


class _opened:
    """A directory descriptor for the time of a `with`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags)
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
