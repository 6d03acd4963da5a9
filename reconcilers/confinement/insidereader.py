"""A small process that reads a VMM's /proc entries from inside the VMM's user namespace.

Started once by `inside` as `python -I -S`, single-threaded, because setns(2) lets no thread of many
enter a user namespace. Whoever entered one cannot come back, so it forks for each request: the
child enters, answers one line of JSON and ends. It imports the standard library and its siblings
procfds, procfile and syscalls, and does only what the three requests below say.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import NoReturn

from reconcilers.confinement import procfds, syscalls
from reconcilers.confinement.securebits import NO_SETUID_FIXUP


def main() -> NoReturn:
    """Answers a line on stdout for each line on stdin until that closes."""
    gc.disable()  # a child lives for a millisecond, and a collection would copy every page
    gc.freeze()
    requests = sys.stdin.buffer
    while line := requests.readline():
        child = os.fork()
        if child == 0:
            _answer(line)
        os.waitpid(child, 0)
    os._exit(0)


def _answer(line: bytes) -> NoReturn:
    try:
        answer = _do(json.loads(line))
    except OSError as error:
        answer = {"errno": error.errno or 0, "error": str(error)}
    except BaseException as error:
        answer = {"errno": 0, "error": f"{type(error).__name__}: {error}"}
    os.write(1, json.dumps(answer).encode() + b"\n")
    os._exit(0)


def _do(request: dict[str, object]) -> dict[str, object]:
    match request:
        case {"ask": "held", "pid": int(pid), "given": list(given)}:
            _enter(pid)
            held = procfds.read_held(pid, set(map(str, given)))
            return {"held": held}
        case {"ask": "attach", "pid": int(pid), "files": list(files), "ids": [int(uid), int(gid)]}:
            _enter(pid)
            _become(uid, gid)
            for path in files:
                _write(str(path), str(pid))
            return {"attached": pid}
        case _:
            raise ValueError("an unknown request")


def _enter(pid: int) -> None:
    namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(namespace, syscalls.CLONE_NEWUSER)
    os.close(namespace)


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
