"""Attempts on another sandbox, made by a child of ours that has taken on the identity of a VMM.

Each attempt is one call with one outcome: "done", or the kernel's word for the refusal. The very
same attempts are made by an unconfined process first: what fails there too proves nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

DONE = "done"
GUARDED = ("environ", "maps", "smaps", "auxv", "io", "syscall", "personality")
FOLDERS = ("fd", "ns")
LINKS = ("root", "cwd", "exe")


@dataclass(frozen=True)
class Target:
    """What there is of the other sandbox; numbers and paths as the host knows them.

    `folder_fd` and `socket_fd` are O_PATH descriptors of its disk's folder and its monitor: the
    attacker is let past every folder on the way. `address` is a readable address of its VMM.
    """

    pid: int
    address: int
    disk: str
    sockets: tuple[str, ...]
    folder_fd: int
    socket_fd: int
    port: int
    abstract: str
    segment: int
    host_disk: tuple[int, int]


def outcome(call: Callable[[], object]) -> str:
    """ "done" or the error's name; anything but an OSError is a mistake of ours and raised."""
    try:
        call()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return DONE


def _call(number: int, *args: object) -> int:
    words = (ctypes.c_long(each) if isinstance(each, int) else each for each in args)
    found = int(_libc.syscall(ctypes.c_long(number), *words))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found


def attempts(target: Target) -> Iterator[tuple[str, str, str]]:
    """(kind, attempt, outcome) of everything below, in order."""
    for kind, make in (
        ("disk", _disk),
        ("sockets", _sockets),
        ("memory", _memory),
        ("proc", _proc),
        ("signals", _signals),
    ):
        for name, call in make(target):
            yield kind, name, outcome(call)


Calls = Iterator[tuple[str, Callable[[], object]]]


def _open(path: str, flags: int = os.O_RDONLY, folder: int | None = None) -> None:
    os.close(os.open(path, flags | os.O_NONBLOCK, dir_fd=folder))


def _disk(target: Target) -> Calls:
    file = os.path.basename(target.disk)
    yield "read by path", lambda: _open(target.disk)
    yield "write by path", lambda: _open(target.disk, os.O_RDWR)
    yield "read past its folders", lambda: _open(file, os.O_RDONLY, target.folder_fd)
    yield "write past its folders", lambda: _open(file, os.O_RDWR, target.folder_fd)
    yield "list past its folders", lambda: os.listdir(f"/proc/self/fd/{target.folder_fd}")
    yield "the host's disk by a node", lambda: _host_disk(target)


def _host_disk(target: Target) -> None:
    for folder in ("/tmp", "/", "/dev/shm"):
        path = f"{folder}/escape-node-{os.getpid()}"
        try:
            os.mknod(path, 0o60600, os.makedev(*target.host_disk))
        except FileNotFoundError:
            continue
        try:
            _open(path)
        finally:
            os.unlink(path)
        return
    raise OSError(errno.ENOENT, "no folder to make a node in")


def _connect(kind: int, where: object) -> None:
    with socket.socket(kind, socket.SOCK_STREAM) as made:
        made.settimeout(2)
        made.connect(where)  # type: ignore[arg-type]


def _sockets(target: Target) -> Calls:
    for path in target.sockets:
        yield f"connect {os.path.basename(path)}", lambda p=path: _connect(socket.AF_UNIX, p)  # type: ignore[misc]
    past = f"/proc/self/fd/{target.socket_fd}"
    yield "connect past its folders", lambda: _connect(socket.AF_UNIX, past)
    yield "the host's abstract socket", lambda: _connect(socket.AF_UNIX, "\0" + target.abstract)
    yield "the host's 127.0.0.1", lambda: _connect(socket.AF_INET, ("127.0.0.1", target.port))
    yield "the host's ::1", lambda: _connect(socket.AF_INET6, ("::1", target.port))
    yield "shared memory of the host", lambda: _call(30, target.segment, 0, 0o10000)  # shmat


def _memory(target: Target) -> Calls:
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_void_p * 2)(target.address, 8)
    yield "process_vm_readv", lambda: _call(310, target.pid, local, 1, remote, 1, 0)
    yield "/proc/PID/mem", lambda: _open(f"/proc/{target.pid}/mem", os.O_RDWR)
    yield "ptrace", lambda: _ptrace(target.pid)
    yield "pidfd_getfd", lambda: _stolen(target.pid)
    yield "process_madvise", lambda: _advise(target.pid, remote)


def _ptrace(pid: int) -> None:
    _call(101, 0x4206, pid, 0, 0)  # PTRACE_SEIZE does not stop it
    _call(101, 0x4207, pid, 0, 0)
    os.waitpid(pid, 0x40000000)
    _call(101, 17, pid, 0, 0)


def _stolen(pid: int) -> None:
    held = os.pidfd_open(pid)
    try:
        os.close(_call(438, held, 3, 0))
    finally:
        os.close(held)


def _advise(pid: int, vector: object) -> None:
    held = os.pidfd_open(pid)
    try:
        _call(440, held, vector, 1, 20, 0)  # MADV_COLD
    finally:
        os.close(held)


def _proc(target: Target) -> Calls:
    at = f"/proc/{target.pid}"
    for name in GUARDED:
        yield name, lambda n=name: _read(f"{at}/{n}")  # type: ignore[misc]
    for name in FOLDERS:
        yield name, lambda n=name: os.readlink(f"{at}/{n}/{os.listdir(f'{at}/{n}')[0]}")  # type: ignore[misc]
    for name in LINKS:
        yield name, lambda n=name: os.stat(f"{at}/{n}")  # type: ignore[misc]


def _read(path: str) -> None:
    held = os.open(path, os.O_RDONLY)
    try:
        os.read(held, 16)
    finally:
        os.close(held)


def _signals(target: Target) -> Calls:
    yield "kill", lambda: os.kill(target.pid, 0)
    yield "tgkill", lambda: _signal(target.pid)
    yield "pidfd_send_signal", lambda: _by_pidfd(target.pid)
    yield "setpriority", lambda: _same_priority(target.pid)
    yield "sched_setaffinity", lambda: _same_processors(target.pid)
    yield "prlimit", lambda: _call(302, target.pid, 7, 0, ctypes.create_string_buffer(16))


def _same_priority(pid: int) -> None:
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))


def _same_processors(pid: int) -> None:
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))


def _by_pidfd(pid: int) -> None:
    held = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(held, 0)
    finally:
        os.close(held)


def files(target: Target) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """What of the other sandbox has a name, for trying it again and again."""
    for path in (target.disk, *target.sockets):
        yield "disk", f"open {path}", lambda p=path: _open(p)  # type: ignore[misc]
    for path in target.sockets:
        yield "sockets", f"connect {path}", lambda p=path: _connect(socket.AF_UNIX, p)  # type: ignore[misc]


def processes(pid: int) -> Calls:
    """What can be tried on any process."""
    yield "memory", lambda: _open(f"/proc/{pid}/mem")
    yield "environ", lambda: _read(f"/proc/{pid}/environ")
    yield "descriptors", lambda: os.listdir(f"/proc/{pid}/fd")
    yield "root", lambda: os.stat(f"/proc/{pid}/root")
    yield "signals", lambda: _signal(pid)


def reachable(last: int) -> list[int]:
    """Every other process that a signal of ours would reach, by trying all numbers up to `last`."""
    numbers = (pid for pid in range(1, last + 1) if pid != os.getpid())
    return [pid for pid in numbers if outcome(lambda: _signal(pid)) == DONE]  # noqa: B023


def _signal(pid: int) -> None:
    """tgkill(2) with one number twice: kill(2) would take the numbers of threads as well."""
    _call(234, pid, pid, 0)
