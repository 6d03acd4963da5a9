"""Children of ours that step into a VMM's place: its user, its namespaces, its rights.

A place takes away walls one after the other, as if a VMM had broken them: "namespaces" is the jail
without its system call filter, "user" is the bare host user without any namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import proc
from .spaces import enter_owned

_libc = ctypes.CDLL(None, use_errno=True)
ALL_BUT_PID = ("cgroup", "uts", "ipc", "net", "mnt")  # mnt last: /proc goes with it
Say = Callable[[object], None]


@dataclass
class Child:
    """A child at work. Its lines arrive on `pipe`; it ends with its task, or with `stop`."""

    pid: int
    pipe: int

    def results(self) -> list[Any]:
        """Everything it says until its end. Raises ChildProcessError when it failed."""
        with os.fdopen(self.pipe, "rb") as file:
            lines = [json.loads(line) for line in file.read().splitlines()]
        _, status = os.waitpid(self.pid, 0)
        if failed := [
            line["error"] for line in lines if isinstance(line, dict) and "error" in line
        ]:
            raise ChildProcessError(failed[0])
        if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGTERM):
            raise ChildProcessError(f"it ended with status {status}")
        return lines

    def stop(self) -> list[Any]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        return self.results()


def start(place: str, vmm: int, task: Callable[[Say], None]) -> Child:
    """Run `task` in a child: "host" (as we are), "user" or "namespaces" of the process `vmm`, or
    "network": as root in its network namespace, more than any of its processes could ever be."""
    sys.stdout.flush()
    receive, send = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        _work(place, vmm, task, send, parent)
    os.close(send)
    return Child(child, receive)


def _work(place: str, vmm: int, task: Callable[[Say], None], send: int, parent: int) -> NoReturn:
    def say(what: object) -> None:
        os.write(send, json.dumps(what).encode() + b"\n")

    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: it never outlives us
        if os.getppid() == parent:
            if place == "network":
                enter_owned(os.open(f"/proc/{vmm}/ns/net", os.O_RDONLY))
            elif place != "host":
                _take_place(vmm, inside=place == "namespaces")
            task(say)
            status = 0
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        say({"error": f"{type(error).__name__}: {error} ({frame.name}, line {frame.lineno})"})
    os._exit(status)


def _take_place(vmm: int, *, inside: bool) -> None:
    """Become the VMM's user, with `inside` in all its namespaces; Raises OSError."""
    entries = ("pid", *ALL_BUT_PID) if inside else ()
    opened = [os.open(f"/proc/{vmm}/ns/{name}", os.O_RDONLY) for name in entries]
    if proc.namespace(vmm, "user") != proc.namespace("self", "user"):
        users = os.open(f"/proc/{vmm}/ns/user", os.O_RDONLY)
        _enter(users)
    facts = proc.status(vmm)  # as numbers of the user namespace we are in now
    user, group = int(facts["Uid"].split()[0]), int(facts["Gid"].split()[0])
    dropping = Path("/proc/self/setgroups").read_text().strip() == "allow"
    for descriptor in opened:
        _enter(descriptor)
    if dropping:
        os.setgroups([])
    elif extra := set(os.getgroups()) - {group}:  # as little the VMM could have dropped them
        raise OSError(0, f"the groups {extra} stay with us")
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    if os.getresuid() != (user, user, user) or user == 0:
        raise OSError(0, f"still user {os.getresuid()}")
    if inside and (child := os.fork()):  # setns(2): only children are in the pid namespace
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
        _, status = os.waitpid(child, 0)
        os._exit(0 if status in (0, signal.SIGKILL) else 1)
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")
    os.close(descriptor)


@contextlib.contextmanager
def at_work(child: Child) -> Iterator[Child]:
    """Ends a child that its caller did not wait for."""
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError, OSError):
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
