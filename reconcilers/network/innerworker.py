"""A process that works inside the namespaces of an ordinary user's bridged sandboxes.

Started once by `innerclient`, single-threaded, because setns(2) lets no thread of many enter a user
namespace. Whoever entered one cannot come back, so it forks for each request: the child enters,
does what it is asked, answers one line of JSON, with descriptors where some were made, and ends.

It makes and mends, compares rules that may have changed, and opens what shows the rest on every
pass without it (`innerviews`).
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from typing import Any, NoReturn

from reconcilers import procfs
from reconcilers.confinement import syscalls
from reconcilers.network import inner, innerviews
from reconcilers.network.wanted import Wanted
from specs.errors import BoxError

_REQUEST_MAX = 1 << 20
_CHANGES = ("build", "mend")
_CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h


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
        request, buffer = json.loads(buffer), b""
        if request["ask"] in _CHANGES:
            import pyroute2  # noqa: F401  # once, before any fork: it takes 0.3 s
        wanted = inner.from_text(request["wanted"])
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
    keeper, asked = request["keeper"], request["ask"]
    spaces = {wanted.middle_space: _open_space(keeper, "net")}
    if "vmm" in request:
        spaces[wanted.vmm_space] = _open_space(request["vmm"], "net")
    syscalls.setns(_open_space(keeper, "user"), syscalls.CLONE_NEWUSER)
    _give_nft_its_right()
    if asked in _CHANGES:
        _name(spaces)

    def enter(space: str) -> None:
        syscalls.setns(spaces[space], syscalls.CLONE_NEWNET)

    match asked:
        case "build":
            return {}, inner.build(wanted)
        case "mend":
            inner.mend(wanted)
            return {}, ()
        case "compare":
            enter(wanted.middle_space)
            wrong, generation = inner.compare(wanted)
            return {"wrong": wrong, "generation": generation}, ()
        case "open":
            inodes = [
                os.fstat(spaces[each]).st_ino for each in (wanted.vmm_space, wanted.middle_space)
            ]
            opened = innerviews.open_both(wanted, enter)
            given = tuple(each for one in opened for each in one.values())
            return {"spaces": inodes, "opened": [list(one) for one in opened]}, given
        case other:
            raise ValueError(f"an unknown request: {other}")


def _open_space(process: list[int], kind: str) -> int:
    """A namespace of exactly this process, (PID, start time). Raises ProcessLookupError when it has
    ended.
    """
    pid, start = process
    try:
        descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error
    if procfs.alive(pid, start) is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return descriptor


def _give_nft_its_right() -> None:
    """nft(8) is another program; without this it would have no right where we are not UID 0."""
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


if __name__ == "__main__":
    sys.exit("it is started by reconcilers.network.innerclient")
