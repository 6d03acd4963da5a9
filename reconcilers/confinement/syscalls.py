"""The only ctypes of the project: one thin function for each system call Python does not offer.

Each raises OSError with errno and, where there is one, the path. Nothing here decides anything:
which call, in which order and what a failure means is the caller's business. The numbers are from
the kernel's include/uapi; those from 424 on are the same on every architecture. The module is
imported by the jail launcher too, so it imports nothing of ours and little else.
"""

from __future__ import annotations

import ctypes
import os
import struct

# --- mount(2), umount2(2), unshare(2) ---
MS_REC = 0x4000
MS_BIND = 0x1000
MS_PRIVATE = 1 << 18
MS_SHARED = 1 << 20
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MNT_DETACH = 2
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
# --- the mount interface by descriptor: open_tree, move_mount, mount_setattr ---
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
MOUNT_ATTR_IDMAP = 0x00100000
AT_EMPTY_PATH = 0x1000
# --- openat2(2) ---
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
# --- renameat2(2) ---
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
# --- landlock(7) ---
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_RULE_PATH_BENEATH = 1
# --- ptrace(2) ---
PTRACE_DETACH = 17
PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207
PTRACE_SECCOMP_GET_FILTER = 0x420C
# --- sched(7), sched_setattr(2) ---
SCHED_BATCH, SCHED_IDLE = 3, 5
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, ...

_PR_SET_SECUREBITS, _PR_CAPBSET_READ = 28, 23
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_SECCOMP_SET_MODE_FILTER = 1
_CAPABILITY_VERSION_3 = 0x20080522
_BPF_INSTRUCTION = 8  # sizeof(struct sock_filter)
_NUMBERS = {
    "open_tree": 428,
    "move_mount": 429,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
} | {
    "x86_64": {
        "pivot_root": 155,
        "seccomp": 317,
        "capget": 125,
        "capset": 126,
        "sched_setattr": 314,
        "sched_getattr": 315,
    },
    "aarch64": {
        "pivot_root": 41,
        "seccomp": 277,
        "capget": 90,
        "capset": 91,
        "sched_setattr": 274,
        "sched_getattr": 275,
    },
}.get(os.uname().machine, {})

_PIDFD_GETFD = ctypes.c_long(_NUMBERS["pidfd_getfd"])

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.ptrace.restype = ctypes.c_long
# Asked once for each file of a tree: with its types told once, a call costs a fifth.
_OPENAT2 = _libc["syscall"]  # a function of its own; as an attribute it would be the one above
_OPENAT2.restype = ctypes.c_long
_OPENAT2.argtypes = [
    ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t,
]  # fmt: skip
_OPEN_HOW = struct.Struct("=QQQ")  # struct open_how: flags, mode, resolve
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.mount.argtypes = [
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p,
]  # fmt: skip
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def _check(result: int, what: str, path: str | bytes | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", path)
    return result


def _call(name: str, *arguments: object, path: str | None = None) -> int:
    """syscall(2) by name. Integers are widened: a C int would leave the upper half undefined."""
    number = _NUMBERS[name]
    widened = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *widened), name, path)


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode() if kind else None, flags, data.encode()
    )
    _check(result, "mount", target)


def umount2(target: str, flags: int) -> None:
    _check(_libc.umount2(os.fsencode(target), flags), "umount2", target)


def pivot_root(new: str, old: str) -> None:
    _call("pivot_root", os.fsencode(new), os.fsencode(old), path=new)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(descriptor: int, kind: int) -> None:
    """Enters the namespace behind `descriptor`, which must be of `kind` (CLONE_NEW*)."""
    _check(_libc.setns(descriptor, kind), f"setns({kind:#x})")


def sethostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), len(name.encode())), "sethostname")


def open_tree(descriptor: int) -> int:
    """A detached copy of the mount of the file behind `descriptor`, as a new descriptor."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_EMPTY_PATH
    return _call("open_tree", descriptor, b"", flags)


def move_mount(tree: int, target: int, *, path: str | None = None) -> None:
    """Attaches the detached mount `tree` on the file or directory behind `target`."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _call("move_mount", tree, b"", target, b"", flags, path=path)


def mount_setattr(descriptor: int, attributes: int, userns: int = -1) -> None:
    """Makes the mount whose root is behind `descriptor` private and sets MOUNT_ATTR_* on it.

    With the descriptor of a user namespace, the owners of its files are shown as that maps them.
    """
    if userns >= 0:
        attributes |= MOUNT_ATTR_IDMAP
    # struct mount_attr { __u64 attr_set, attr_clr, propagation, userns_fd; }
    block = (ctypes.c_uint64 * 4)(attributes, 0, MS_PRIVATE, max(userns, 0))
    size = ctypes.sizeof(block)
    _call("mount_setattr", descriptor, b"", AT_EMPTY_PATH, ctypes.byref(block), size)


def openat2(directory: int, path: str | bytes, flags: int, resolve: int = 0, mode: int = 0) -> int:
    """open(2) below `directory` with RESOLVE_* limits; the descriptor is close-on-exec."""
    name = path if isinstance(path, bytes) else os.fsencode(path)
    how = _OPEN_HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    found: int = _OPENAT2(_NUMBERS["openat2"], directory, name, how, _OPEN_HOW.size)
    return found if found >= 0 else _check(found, "openat2", os.fsdecode(name))


def _renameat2(old_fd: int, old: str, new_fd: int, new: str, flags: int) -> None:
    result = _libc.renameat2(old_fd, os.fsencode(old), new_fd, os.fsencode(new), flags)
    _check(result, "renameat2", new)


def renameat2_exchange(old_fd: int, old: str, new_fd: int, new: str) -> None:
    """Swaps two existing files in one step; both must be on one file system."""
    _renameat2(old_fd, old, new_fd, new, RENAME_EXCHANGE)


def renameat2_noreplace(old_fd: int, old: str, new_fd: int, new: str) -> None:
    """Renames, or raises FileExistsError instead of replacing anything."""
    _renameat2(old_fd, old, new_fd, new, RENAME_NOREPLACE)


def close_range(first: int, last: int) -> None:
    """Closes every descriptor from `first` to `last`, both included; ~0 is the real end."""
    number = ctypes.c_long(_NUMBERS["close_range"])
    _check(
        _libc.syscall(number, ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_uint(0)),
        "close_range",
    )


def pidfd_getfd(process: int, number: int) -> int:
    """A copy of the descriptor `number` of the process behind a pidfd; it is close-on-exec.

    OSError EBADF: it has none of that number; EPERM: only who may trace the process gets one.
    """
    # asked hundreds of times in a pass; its arguments are C ints, so none has an upper half
    return _check(_libc.syscall(_PIDFD_GETFD, process, number, 0), "pidfd_getfd")


def set_securebits(bits: int) -> None:
    """For the bits python-prctl does not know (SECBIT_NO_CAP_AMBIENT_RAISE and its lock)."""
    _check(_libc.prctl(_PR_SET_SECUREBITS, bits, 0, 0, 0), f"PR_SET_SECUREBITS({bits:#x})")


def capbset_read(capability: int) -> int:
    """1 while it is in the bounding set; OSError EINVAL for a number the kernel does not know."""
    return _check(_libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0), "PR_CAPBSET_READ")


def ambient_clear() -> None:
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "PR_CAP_AMBIENT")


def ambient_raise(capability: int) -> None:
    """It must be permitted and inheritable, and NO_CAP_AMBIENT_RAISE not be set."""
    result = _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)
    _check(result, f"PR_CAP_AMBIENT_RAISE({capability})")


def capset(effective: int, permitted: int, inheritable: int) -> None:
    """Sets the capabilities of the calling thread, each a bit mask."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (effective, permitted, inheritable)
    low, high = [each & 0xFFFFFFFF for each in sets], [each >> 32 for each in sets]
    data = (ctypes.c_uint32 * 6)(*low, *high)
    _call("capset", ctypes.byref(header), ctypes.byref(data))


def capget() -> tuple[int, int, int]:
    """Effective, permitted and inheritable capabilities of the calling thread, as bit masks."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _call("capget", ctypes.byref(header), ctypes.byref(data))
    return data[0] | data[3] << 32, data[1] | data[4] << 32, data[2] | data[5] << 32


class _Program(ctypes.Structure):
    """struct sock_fprog of bpf."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def seccomp_load(program: bytes) -> None:
    """Loads a classic BPF program as a seccomp filter of the calling thread."""
    block = ctypes.create_string_buffer(program, len(program))
    header = _Program(len(program) // _BPF_INSTRUCTION, ctypes.addressof(block))
    _call("seccomp", _SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(header))


def landlock_abi() -> int:
    """The kernel's Landlock version; OSError ENOSYS or EOPNOTSUPP where it has none."""
    return _call("landlock_create_ruleset", None, 0, LANDLOCK_CREATE_RULESET_VERSION)


def landlock_create_ruleset(files: int, tcp: int, scoped: int, size: int) -> int:
    """A ruleset handling these access rights. `size`: bytes of the structure this ABI knows."""
    # struct landlock_ruleset_attr { __u64 handled_access_fs, handled_access_net, scoped; }
    block = (ctypes.c_uint64 * 3)(files, tcp, scoped)
    return _call("landlock_create_ruleset", ctypes.byref(block), size, 0)


def landlock_allow_path(ruleset: int, access: int, descriptor: int) -> None:
    """Allows `access` to the file, or beneath the directory, behind `descriptor`."""
    # struct landlock_path_beneath_attr { __u64 allowed_access; __s32 parent_fd; } packed
    block = ctypes.create_string_buffer(struct.pack("=Qi", access, descriptor), 12)
    _call("landlock_add_rule", ruleset, LANDLOCK_RULE_PATH_BENEATH, ctypes.byref(block), 0)


def landlock_restrict_self(ruleset: int) -> None:
    """Needs no_new_privs; applies to the calling thread and what it becomes."""
    _call("landlock_restrict_self", ruleset, 0)


def ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> int:
    return _check(_libc.ptrace(request, thread, address, data), f"ptrace({request:#x}, {thread})")


def ptrace_seccomp_filter(thread: int, index: int) -> bytes:
    """The BPF program number `index` of a stopped tracee; 0 is the one loaded first.

    OSError ENOENT: there is no such program.
    """
    length = ptrace(PTRACE_SECCOMP_GET_FILTER, thread, index, 0)
    block = ctypes.create_string_buffer(length * _BPF_INSTRUCTION)
    ptrace(PTRACE_SECCOMP_GET_FILTER, thread, index, ctypes.addressof(block))
    return block.raw


def time_slice(thread: int) -> int:
    """Nanoseconds for which a thread may keep a CPU that others want; 0 is this thread.

    0 where the kernel has no such number for it: before Linux 6.12, or not an ordinary policy.
    """
    block = ctypes.create_string_buffer(_SCHED_ATTR.size)
    _call("sched_getattr", thread, ctypes.byref(block), _SCHED_ATTR.size, 0)
    return int(_SCHED_ATTR.unpack(block.raw)[5])


def set_time_slice(thread: int, nanoseconds: int) -> None:
    """Keeps the nice value, and makes the policy an ordinary one. An older kernel ignores it."""
    block = ctypes.create_string_buffer(_SCHED_ATTR.size)
    _call("sched_getattr", thread, ctypes.byref(block), _SCHED_ATTR.size, 0)
    size, policy, flags, nice, *_ = _SCHED_ATTR.unpack(block.raw)
    policy = policy if policy in (SCHED_BATCH, SCHED_IDLE) else 0
    attributes = _SCHED_ATTR.pack(size, policy, flags, nice, 0, nanoseconds, 0, 0)
    _call("sched_setattr", thread, attributes, 0)
