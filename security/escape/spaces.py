"""Where network namespaces of ours are made, and how a child gets into one.

Root makes them as they are. An ordinary user may not, but in a user namespace of their own: there
the user is root over networks that lead nowhere, and nobody on the host. Every identity in it is
what it is on the host, but for one subordinate one, which is 0. So a `box` that is started
in there is started by the same user, with the same subordinate identities.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
NS_GET_USERNS = 0xB701  # ioctl_ns(2)
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
# What writes the maps of user namespaces; set-user-ID, so in ours it must belong to our own 0.
MAPPERS = ("newuidmap", "newgidmap")
SEARCH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"  # a user's names no sbin
Spaces = tuple[str, ...]
_libc = ctypes.CDLL(None, use_errno=True)


def _called(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _setns(descriptor: int, kind: int) -> None:
    _called("setns", _libc.setns(descriptor, kind))


class Ground:
    """Makes namespaces. `folder` is empty and ours. Raises OSError where it cannot be had."""

    def __init__(self, folder: Path) -> None:
        self.user = self.mounts = -1
        if os.geteuid() != 0:
            self._own(folder)

    def _own(self, folder: Path) -> None:
        maps = [_map("uid", os.getuid()), _map("gid", os.getgid())]
        steps = (_unshare_users, _become_root, partial(_replace_mappers, folder))
        with _child(*steps) as (child, step):
            step()
            for program, rows in zip(MAPPERS, maps, strict=True):
                words = [program, str(child), *map(str, rows)]
                done = subprocess.run(words, capture_output=True, text=True, timeout=20)
                if done.returncode != 0:
                    raise OSError(f"{program}: {done.stderr.strip()[-200:]}")
            step()
            self.user, self.mounts = step()

    def new(self) -> int:
        """A descriptor that keeps a new network namespace; this process never is in it."""

        def make() -> Spaces:
            self._enter()
            _called("unshare", _libc.unshare(CLONE_NEWNET))
            return ("net",)

        with _child(make) as (_, step):
            return step()[0]

    def _enter(self) -> None:
        if self.user >= 0:
            _setns(self.user, CLONE_NEWUSER)
            _become_root()

    def entering(self, space: int, *, mortal: bool = False) -> Callable[[], None]:
        """For a child between fork and exec: root over this network. A mortal one does not outlive
        this process."""

        def enter() -> None:
            self._enter()
            _setns(space, CLONE_NEWNET)
            if mortal:
                _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG

        return enter

    def entering_as_we_are(self, space: int) -> Callable[[], None]:
        """The same for a child that stays who we are: execve(2) leaves a user no right there."""

        def enter() -> None:
            if self.user >= 0:
                _setns(self.user, CLONE_NEWUSER)
                _setns(self.mounts, CLONE_NEWNS)
            _setns(space, CLONE_NEWNET)

        return enter

    def close(self) -> None:
        for descriptor in (self.user, self.mounts):
            if descriptor >= 0:
                os.close(descriptor)
        self.user = self.mounts = -1


def _map(kind: str, own: int) -> list[int]:
    path = f"/etc/sub{kind}"
    name = pwd.getpwuid(os.getuid()).pw_name
    with open(path, encoding="utf-8", errors="replace") as file:
        if found := rows(name, file.read(), own):
            return found
    raise OSError(f"{path} has no line for {name}")


def rows(name: str, text: str, own: int) -> list[int]:
    """Rows of uid_map or gid_map (user_namespaces(7)), one after the other, from the lines of
    subuid(5) for this name or our number; empty without one. Raises OSError."""
    ranges = []
    for line in text.splitlines():
        whose, _, numbers = line.partition(":")
        if whose in (name, str(os.getuid())):
            try:
                first, count = (int(number) for number in numbers.split(":"))
            except ValueError:
                raise OSError(f"{line[:60]!r} is no line of subuid(5)") from None
            ranges.append((first, count))
    if not ranges:
        return []
    # a range of one may be there for what that identity is, as the group of /dev/kvm
    root, most = max(ranges, key=lambda each: each[1])
    rest = [(root + 1, most - 1), *(each for each in ranges if each != (root, most))]
    found = [0, root, 1, own, own, 1]
    for first, count in rest:
        found += [first, first, count] if count else []
    return found


def _unshare_users() -> Spaces:
    _called("unshare", _libc.unshare(CLONE_NEWUSER))
    return ()


def _become_root() -> Spaces:
    """Who may enter a user namespace has all rights in it, but keeps them only as its 0."""
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return ()


def _replace_mappers(folder: Path) -> Spaces:
    """In a mount namespace of its own: copies with the same right over this user namespace."""
    _called("unshare", _libc.unshare(CLONE_NEWNS))
    _called("mount", _libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _called("mount", _libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"mode=0711"))
    for name in MAPPERS:
        there = shutil.which(name, path=SEARCH)
        if there is None:
            raise OSError(f"{name} is not installed (Debian: uidmap)")
        copy = folder / name
        shutil.copyfile(there, copy)
        copy.chmod(0o4755)
        target = os.path.realpath(there).encode()
        _called("mount", _libc.mount(bytes(copy), target, None, MS_BIND, None))
    return ("user", "mnt")


@contextlib.contextmanager
def _child(*steps: Callable[[], Spaces]) -> Iterator[tuple[int, Callable[[], list[int]]]]:
    """A child that does one step whenever it is asked to, and is killed in the end. Asking gives
    descriptors of those of its namespaces that the step names."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            ours.close()
            for each in steps:
                _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # again: a change of identity forgets it
                if os.getppid() != parent or not theirs.recv(1):
                    break
                _work(each, theirs)
            theirs.recv(1)
        os._exit(1)
    theirs.close()
    ours.settimeout(30)

    def step() -> list[int]:
        ours.send(b"!")
        said, found, _, _ = socket.recv_fds(ours, 1000, 2)
        if said != b"done":
            number, _, text = said.decode().partition(" ")
            if int(number or 0):
                raise OSError(int(number), text)
            raise OSError(text or "the child that makes a namespace ended")
        return found

    try:
        yield child, step
    finally:
        ours.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _work(step: Callable[[], Spaces], caller: socket.socket) -> None:
    try:
        held = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in step()]
    except OSError as error:
        caller.send(f"{error.errno or 0} {error.strerror or error}".encode())
    else:
        socket.send_fds(caller, [b"done"], held)


def enter_owned(space: int) -> None:
    """Enter a network namespace, and before that the user namespace it belongs to."""
    users = fcntl.ioctl(space, NS_GET_USERNS)
    if os.fstat(users).st_ino != os.stat("/proc/self/ns/user").st_ino:
        _setns(users, CLONE_NEWUSER)
    _setns(space, CLONE_NEWNET)


def links(space: int | None) -> dict[str, str]:
    """Every network device of a namespace (None: ours) with its kind; "" for hardware."""
    command = ["ip", "-j", "-d", "link", "show"]
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=20,
        env={**os.environ, "PATH": SEARCH},
        preexec_fn=None if space is None else lambda: enter_owned(space),
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout or b"[]")
    return {
        each["ifname"]: "loopback"
        if each.get("link_type") == "loopback"
        else str(each.get("linkinfo", {}).get("info_kind", ""))
        for each in found
        if each.get("ifname")
    }
