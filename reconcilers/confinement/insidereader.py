"""A small process that reads a VMM's /proc entries from inside the VMM's user namespace.

Started once by `inside` as `python -I -S`, single-threaded, because setns(2) lets no thread of many
enter a user namespace. Whoever entered one cannot come back, so it forks: the child enters, answers
one line of JSON for each request, and ends when the next is about another namespace or none comes
for a moment. A readback asks several times in a row, and most of what an answer costs is the fork.
It imports the standard library and its siblings procfds, procfile and syscalls, and does only what
the requests below say, and those of a module that `inside` names.
"""

from __future__ import annotations

import gc
import json
import os
import select
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from reconcilers.confinement import procfds, syscalls
from reconcilers.confinement.securebits import NO_SETUID_FIXUP

Request = dict[str, Any]
Handler = Callable[[Request], Request]
_IDLE = 0.05  # seconds; longer than from one request of a readback to the next
_ALONE = "attach"  # changes who the child is, which then answers nothing else


class _Child:
    """A process in one user namespace; `number` is that namespace's inode."""

    def __init__(self, namespace: int, handlers: Mapping[str, Handler]) -> None:
        self.number = os.fstat(namespace).st_ino
        asked, self._asks = os.pipe2(os.O_CLOEXEC)
        self._answers, answered = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._asks)
            os.close(self._answers)
            _serve(asked, answered, namespace, handlers)
        os.close(asked)
        os.close(answered)

    def ask(self, line: bytes) -> bytes:
        """Its answer, a line. Raises OSError when it ended without one."""
        _write_all(self._asks, line)
        answer = b""
        while not answer.endswith(b"\n"):
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise ChildProcessError("the reader's child ended without an answer")
            answer += part
        return answer

    def let_go(self) -> None:
        os.close(self._asks)
        os.close(self._answers)
        os.waitpid(self._pid, 0)


def main(*modules: str) -> NoReturn:
    """Answers a line on stdout for each line on stdin until that closes.

    `modules` have more answers, as HANDLERS, and `prepare`, which sees each request before a child
    does: what it remembers, later children know.
    """
    handlers: dict[str, Handler] = {"held": _held, "attach": _attach}
    prepare: list[Callable[[Request], None]] = []
    for name in modules:
        module = __import__(name, fromlist=["HANDLERS"])
        handlers.update(module.HANDLERS)
        prepare.append(module.prepare)
    gc.disable()  # a child lives for milliseconds, and a collection would copy every page
    gc.freeze()
    child: _Child | None = None
    buffer = b""
    while True:
        if child is not None and not select.select([0], [], [], _IDLE)[0]:
            child.let_go()
            child = None
        data = os.read(0, 1 << 16)
        if not data:
            os._exit(0)
        buffer += data
        if not buffer.endswith(b"\n"):
            continue
        line, buffer = buffer, b""
        last = True
        try:
            request = json.loads(line)
            for each in prepare:
                each(request)
            namespace = os.open(f"/proc/{request['pid']}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            try:
                last = request["ask"] == _ALONE
                if child is not None and (last or child.number != os.fstat(namespace).st_ino):
                    child.let_go()
                    child = None
                child = child or _Child(namespace, handlers)
            finally:
                os.close(namespace)
            answer = child.ask(line)
        except BaseException as error:
            answer, last = _written(_failure(error)), True
        _write_all(1, answer)
        if child is not None and last:
            child.let_go()
            child = None


def _serve(asked: int, answered: int, namespace: int, handlers: Mapping[str, Handler]) -> NoReturn:
    entered, buffer = False, b""
    while data := os.read(asked, 1 << 16):
        buffer += data
        if not buffer.endswith(b"\n"):
            continue
        try:
            request = json.loads(buffer)
            if not entered:
                syscalls.setns(namespace, syscalls.CLONE_NEWUSER)
                os.close(namespace)
                entered = True
            answer = handlers[request["ask"]](request)
        except BaseException as error:
            answer = _failure(error)
        buffer = b""
        _write_all(answered, _written(answer))
    os._exit(0)


def _written(answer: Request) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _failure(error: BaseException) -> Request:
    if isinstance(error, OSError):
        return {"errno": error.errno or 0, "error": str(error)}
    return {"errno": 0, "error": f"{type(error).__name__}: {error}"}


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
