"""A process that works inside the namespaces of an ordinary user's bridged sandboxes.

Started once by `innerclient`, single-threaded, because setns(2) lets no thread of many enter a user
namespace. Whoever entered one cannot come back, so it forks for each request: the child enters,
does what it is asked, answers one line of JSON, with descriptors where some were made, and ends.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import socket
import sys
from typing import Any, NoReturn

import pyroute2  # noqa: F401  # once, before any fork: it takes 0.3 s

from reconcilers import procfs
from reconcilers.confinement import syscalls
from reconcilers.network import inner
from specs.errors import BoxError

_CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h
_REQUEST_MAX = 1 << 20


def main() -> NoReturn:
    """Answers a line on the socket that is stdin for each line on it until that closes."""
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
        line, buffer = buffer, b""
        child = os.fork()
        if child == 0:
            _answer(channel, line)
        _, status = os.waitpid(child, 0)
        if status:  # it died without an answer
            _send(channel, {"error": f"the worker ended with status {status}", "fix": ""}, ())
    os._exit(0)


def _answer(channel: socket.socket, line: bytes) -> NoReturn:
    descriptors: tuple[int, ...] = ()
    try:
        answer, descriptors = _do(json.loads(line))
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


def _do(request: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    wanted = inner.from_plain(request["wanted"])
    _enter(request["keeper"], wanted.middle_space, request.get("vmm"), wanted.vmm_space)
    match request["ask"]:
        case "build":
            return {}, inner.build(wanted)
        case "observe":
            return dataclasses.asdict(inner.observe(wanted, request["known"])), ()
        case "mend":
            inner.mend(wanted)
            return {}, ()
        case other:
            raise ValueError(f"an unknown request: {other}")


def _enter(keeper: list[int], middle: str, vmm: list[int] | None, space: str) -> None:
    """Into the keeper's user namespace, and a mount namespace in which the network namespaces have
    names. `keeper` and `vmm` are (PID, start time).
    """
    users = _open(keeper, "user")
    syscalls.setns(users, syscalls.CLONE_NEWUSER)
    found = [(middle, _open(keeper, "net"))]
    if vmm is not None:
        found.append((space, _open(vmm, "net")))
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("box", "/run", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=64k")
    for name, descriptor in found:
        inner.show_under(name, descriptor)
    # nft(8) is another program; without this it would have no right where we are not UID 0
    effective, permitted, _ = syscalls.capget()
    syscalls.capset(effective, permitted, 1 << _CAP_NET_ADMIN)
    syscalls.ambient_raise(_CAP_NET_ADMIN)


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
