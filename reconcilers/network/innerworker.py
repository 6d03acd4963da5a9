"""A process that works inside the namespaces of an ordinary user's bridged sandboxes.

Started once by `innerclient`, single-threaded, because setns(2) lets no thread of many enter a user
namespace. Whoever entered one cannot come back, so it forks for each request: the child enters,
does what it is asked, answers one line of JSON, with descriptors where some were made, and ends.

There is one that makes and one that reads: a fork costs by what a process has loaded, a reading is
made on every pass, and only making needs pyroute2.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import socket
import sys
from typing import Any, NoReturn

from reconcilers import procfs
from reconcilers.confinement import syscalls
from reconcilers.network import inner, innerread
from reconcilers.network.wanted import Wanted
from specs.errors import BoxError

_CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h
_REQUEST_MAX = 1 << 20


def main(*, makes: bool) -> NoReturn:
    """Answers a line on the socket that is stdin for each line on it until that closes."""
    if makes:
        import pyroute2  # noqa: F401  # once, before any fork: it takes 0.3 s
    gc.disable()
    gc.freeze()
    channel = socket.socket(fileno=os.dup(0))
    buffer = b""
    while data := channel.recv(1 << 16):
        buffer += data
        if len(buffer) > _REQUEST_MAX:
            break
        if not buffer.endswith(b"\n"):
            continue
        request, buffer = json.loads(buffer), b""
        wanted = inner.from_text(request["wanted"])  # remembered, for the next child too
        child = os.fork()
        if child == 0:
            _answer(channel, request, wanted)
        _, status = os.waitpid(child, 0)
        if status:  # it died without an answer
            _send(channel, {"error": f"the worker ended with status {status}", "fix": ""}, ())
    os._exit(0)


def _answer(channel: socket.socket, request: dict[str, Any], wanted: Wanted) -> NoReturn:
    descriptors: tuple[int, ...] = ()
    try:
        answer, descriptors = _do(request, wanted)
    except BoxError as error:
        answer = {"error": error.message, "fix": error.fix}
    except ProcessLookupError as error:
        answer = {"gone": str(error)}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}", "fix": ""}
    _send(channel, answer, descriptors)
    os._exit(0)


def _send(channel: socket.socket, answer: dict[str, Any], descriptors: tuple[int, ...]) -> None:
    """The descriptors go with the first byte of the answer (unix(7))."""
    data = json.dumps(answer).encode() + b"\n"
    sent = socket.send_fds(channel, [data], descriptors)
    channel.sendall(data[sent:])


def _do(request: dict[str, Any], wanted: Wanted) -> tuple[dict[str, Any], tuple[int, ...]]:
    ask, keeper = request["ask"], request["keeper"]
    spaces = {wanted.middle_space: _open(keeper, "net")}
    if "vmm" in request:
        spaces[wanted.vmm_space] = _open(request["vmm"], "net")
    _join(keeper)
    if ask == "observe":

        def enter(space: str) -> None:
            syscalls.setns(spaces[space], syscalls.CLONE_NEWNET)

        found = innerread.observe(wanted, inner.table, request["known"], enter)
        return dataclasses.asdict(found), ()
    _name(spaces)
    if ask == "build":
        return {}, inner.build(wanted)
    if ask == "mend":
        inner.mend(wanted)
        return {}, ()
    raise ValueError(f"an unknown request: {ask}")


def _join(keeper: list[int]) -> None:
    """Into the keeper's user namespace; `keeper` is (PID, start time)."""
    syscalls.setns(_open(keeper, "user"), syscalls.CLONE_NEWUSER)
    # nft(8) is another program; without this it would have no right where we are not UID 0
    effective, permitted, _ = syscalls.capget()
    syscalls.capset(effective, permitted, 1 << _CAP_NET_ADMIN)
    syscalls.ambient_raise(_CAP_NET_ADMIN)


def _name(spaces: dict[str, int]) -> None:
    """A mount namespace of our own, in which the network namespaces have root's names."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("box", "/run", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=64k")
    for name, descriptor in spaces.items():
        inner.show_under(name, descriptor)


def _open(process: list[int], kind: str) -> int:
    """A namespace of exactly this process. Raises ProcessLookupError when it has ended."""
    pid, start = process
    try:
        descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error
    if procfs.alive(pid, start) is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return descriptor


if __name__ == "__main__":
    sys.exit("it is started by reconcilers.network.innerclient")
