"""A small process that works on a VMM from inside the VMM's user namespace.

Started once by `inside` as `python -I -S`, single-threaded, because setns(2) lets no thread of many
enter a user namespace. Whoever entered one cannot come back, so it forks for each request: the
child enters, does what is asked, answers one line of JSON and ends. It imports the standard library
and its siblings procfds, procfile and syscalls, and does only what the requests below say.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from typing import Any, NoReturn

from reconcilers.confinement import procfds, syscalls
from reconcilers.confinement.securebits import NO_SETUID_FIXUP

Request = dict[str, Any]


def main() -> NoReturn:
    """Answers a line on stdout for each line on stdin until that closes."""
    gc.disable()  # a child lives for milliseconds, and a collection would copy every page
    gc.freeze()
    buffer = b""
    while data := os.read(0, 1 << 16):
        buffer += data
        if not buffer.endswith(b"\n"):
            continue
        line, buffer = buffer, b""
        child = os.fork()
        if child == 0:
            _serve(line)
        if os.waitpid(child, 0)[1]:  # it died before it could answer
            _write_all(1, _written({"errno": 0, "error": "the child that should answer died"}))
    os._exit(0)


def _serve(line: bytes) -> NoReturn:
    try:
        request = json.loads(line)
        namespace = os.open(f"/proc/{request['pid']}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        syscalls.setns(namespace, syscalls.CLONE_NEWUSER)
        answer = _HANDLERS[request["ask"]](request)
    except OSError as error:
        answer = {"errno": error.errno or 0, "error": str(error)}
    except BaseException as error:
        answer = {"errno": 0, "error": f"{type(error).__name__}: {error}"}
    _write_all(1, _written(answer))
    os._exit(0)


def _written(answer: Request) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _held(request: Request) -> Request:
    return {"held": procfds.read_held(int(request["pid"]), set(map(str, request["given"])))}


def _attach(request: Request) -> Request:
    uid, gid = request["ids"]
    _become(int(uid), int(gid))
    for path in request["files"]:
        _write(str(path), str(int(request["pid"])))
    return {"attached": request["pid"]}


def _become(uid: int, gid: int) -> None:
    """cgroup v1 lets only root and the very user of a process move it; capabilities stay, for the
    files belong to the owner of the namespace."""
    syscalls.set_securebits(NO_SETUID_FIXUP)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


_HANDLERS: dict[str, Callable[[Request], Request]] = {"held": _held, "attach": _attach}
