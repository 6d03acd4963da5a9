"""Layers of the launcher that take rights away from the process that becomes the VMM.

Part of the launcher process: standard library, python-prctl and our system calls only. The order in
which they are called is `launch.ORDER`; each says what must have come before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal

import prctl

from reconcilers.confinement import syscalls
from reconcilers.confinement.document import Document
from reconcilers.confinement.securebits import SECUREBITS, WITHOUT_AMBIENT

_LAST_DESCRIPTOR = 0xFFFFFFFF
_CAPABILITIES_MAX = 64  # a capability set is 64 bits wide

# landlock(7): access rights by the ABI version that introduced them
_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_FS_REMOVE_DIR, _FS_REMOVE_FILE, _FS_MAKE_DIR, _FS_MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_FS_MAKE_SYM, _FS_REFER, _FS_TRUNCATE, _FS_IOCTL_DEV = 1 << 12, 1 << 13, 1 << 14, 1 << 15
_FS_READ = _FS_READ_FILE | _FS_READ_DIR
# not among them: making devices, FIFOs and sockets, and running anything
_FS_CHANGE = (
    _FS_WRITE_FILE | _FS_REMOVE_DIR | _FS_REMOVE_FILE | _FS_MAKE_DIR | _FS_MAKE_REG
    | _FS_MAKE_SYM | _FS_REFER | _FS_TRUNCATE
)  # fmt: skip
_FS_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_TCP_BIND_CONNECT = 3  # ABI 4
_SCOPE_ABSTRACT_UNIX_AND_SIGNAL = 3  # ABI 6
# bytes of struct landlock_ruleset_attr by ABI: an older kernel refuses the longer one
_RULESET_SIZE = ((6, 24), (4, 16), (1, 8))


def new_session() -> None:
    """A session of its own has no controlling terminal; files it makes are nobody else's."""
    os.setsid()
    os.umask(0o077)


def take_descriptors(document: Document, keep: int) -> int:
    """Puts the wanted descriptors at their numbers and closes all others to the real end.

    `keep` (the status pipe) survives, close-on-exec; its new number is returned.
    """
    wanted = dict(document.descriptors)
    above = max(wanted) + 1
    lifted = {
        inside: fcntl.fcntl(outside, fcntl.F_DUPFD_CLOEXEC, above)
        for inside, outside in wanted.items()
    }
    kept = fcntl.fcntl(keep, fcntl.F_DUPFD_CLOEXEC, above)
    for inside, descriptor in lifted.items():
        os.dup2(descriptor, inside, inheritable=True)
    start = 0
    for number in [*sorted(wanted), kept]:
        if number > start:
            syscalls.close_range(start, number - 1)
        start = number + 1
    syscalls.close_range(start, _LAST_DESCRIPTOR)
    return kept


def reset_signals() -> None:
    """Python ignores SIGPIPE and SIGXFSZ, and exec keeps what is ignored or blocked."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def limit_resources(document: Document) -> None:
    for name, soft, hard in document.rlimits:
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        try:
            resource.setrlimit(number, (soft, hard))
        except (ValueError, OSError) as error:
            _, ours = resource.getrlimit(number)
            raise ValueError(
                f"{name} cannot be {hard}, for the controller's own hard limit is {ours}"
            ) from error
        if resource.getrlimit(number) != (soft, hard):
            raise OSError(errno.EINVAL, f"the kernel keeps another limit for {name}")


def let_others_go_first(document: Document) -> None:
    """A long time slice, which every thread to come inherits: what wakes up beside it goes first.

    A kernel without them (before Linux 6.12) is no failure: the limits of the group are another
    layer.
    """
    syscalls.set_time_slice(0, document.time_slice_ns)
    if syscalls.time_slice(0) not in (document.time_slice_ns, 0):
        raise OSError(errno.EINVAL, "the kernel keeps another time slice")


def lock_securebits() -> None:
    """Before the bounding set: both need CAP_SETPCAP, and the last one would take it away.

    NO_SETUID_FIXUP keeps the capabilities over the change of identity, so that they are dropped by
    name below and not by a side effect; NOROOT makes an exec as UID 0 give none back.
    """
    prctl.set_securebits(WITHOUT_AMBIENT)
    syscalls.set_securebits(SECUREBITS)


def empty_bounding_set() -> None:
    """What is dropped here no exec can ever give back."""
    prctl.capbset.limit()
    for capability in range(_CAPABILITIES_MAX):
        try:
            left = syscalls.capbset_read(capability)
        except OSError as error:
            if error.errno == errno.EINVAL and capability > 0:
                return  # the kernel has no more of them
            raise
        if left:  # a newer kernel's capability that python-prctl has no name for
            raise OSError(errno.EPERM, f"capability {capability} stays in the bounding set")


def change_identity(document: Document) -> None:
    """Where groups cannot be set, the caller saw that there are none to lose but the own one."""
    if document.groups is not None:
        os.setgroups(document.groups)
    elif document.user_namespace == "late" and os.getgroups():  # they went before
        raise OSError(errno.EPERM, "supplementary groups are left")
    os.setresgid(document.gid, document.gid, document.gid)
    os.setresuid(document.uid, document.uid, document.uid)


def drop_capabilities() -> None:
    """Effective before permitted: an effective capability must be permitted."""
    prctl.cap_effective.limit()
    prctl.cap_permitted.limit()
    prctl.cap_inheritable.limit()
    syscalls.ambient_clear()
    left = syscalls.capget()
    if any(left):  # a kernel with capabilities that python-prctl has no name for
        raise OSError(errno.EPERM, "capabilities are left: " + " ".join(map(hex, left)))


def forbid_new_privileges() -> None:
    prctl.set_no_new_privs(1)
    if prctl.get_no_new_privs() != 1:
        raise OSError(errno.EPERM, "no_new_privs did not stay set")


def restrict_with_landlock(document: Document) -> str:
    """Reading files beneath /, executing the executables, and nothing else; no TCP, no signals out.

    In a shared directory also listing, and changing where it is writable; in the host's network TCP
    as well.

    Returns what was applied. A kernel without Landlock is no failure (the mount namespace already
    holds nothing writable), a kernel that has it and refuses is.
    """
    try:
        abi = syscalls.landlock_abi()
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return "absent"
        raise
    files = sum(rights for since, rights in _FS_RIGHTS.items() if since <= abi)
    # who carries the guest's connections must make them
    tcp = _TCP_BIND_CONNECT if abi >= 4 and not document.host_network else 0
    scoped = _SCOPE_ABSTRACT_UNIX_AND_SIGNAL if abi >= 6 else 0
    size = next(size for since, size in _RULESET_SIZE if since <= abi)
    ruleset = syscalls.landlock_create_ruleset(files, tcp, scoped, size)
    _allow(ruleset, "/", _FS_READ_FILE)
    for bind in document.binds:
        if bind.executable:
            _allow(ruleset, bind.inside, _FS_READ_FILE | _FS_EXECUTE)
    for share in document.shares:
        _allow(ruleset, share.inside, files & (_FS_READ | (_FS_CHANGE if share.writable else 0)))
    if document.kvm:
        _allow(ruleset, "/dev/kvm", files & (_FS_READ_FILE | _FS_WRITE_FILE | _FS_IOCTL_DEV))
    syscalls.landlock_restrict_self(ruleset)
    os.close(ruleset)
    return f"ABI {abi}"


def _allow(ruleset: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        syscalls.landlock_allow_path(ruleset, access, descriptor)
    finally:
        os.close(descriptor)


def readings() -> dict[str, int]:
    """What /proc does not show; the seccomp program need not allow the calls that read it."""
    return {"securebits": prctl.get_securebits(), "pdeathsig": prctl.get_pdeathsig()}


def load_seccomp(document: Document) -> None:
    """Last: from here on only the VMM's own calls are possible."""
    syscalls.seccomp_load(bytes.fromhex(document.seccomp))
