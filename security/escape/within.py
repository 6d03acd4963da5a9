"""Readings of a process in another user namespace, which the kernel gives to its inside alone.

What is in /proc of a VMM whose identity is a subordinate one belongs to that identity: not even
the user who made its user namespace may open it from outside. A child enters and reads.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)


def enter_user_namespace(pid: int) -> bool:
    """Enter that of `pid`, with all rights in it; False when we are in it. Raises OSError."""
    at = f"/proc/{pid}/ns/user"
    if os.readlink(at) == os.readlink("/proc/self/ns/user"):
        return False
    opened = os.open(at, os.O_RDONLY)
    try:
        if _libc.setns(opened, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"setns: {os.strerror(code)}")
    finally:
        os.close(opened)
    return True


def seen_within(look: Callable[Concatenate[int, P], T]) -> Callable[Concatenate[int, P], T]:
    """Makes `look(pid, ...)` look from inside the user namespace of `pid`, if there is need."""

    @functools.wraps(look)
    def looked(pid: int, /, *args: P.args, **words: P.kwargs) -> T:
        ours = os.readlink("/proc/self/ns/user")
        if os.geteuid() == 0 or os.readlink(f"/proc/{pid}/ns/user") == ours:
            return look(pid, *args, **words)
        found: T = _in_a_child(pid, functools.partial(look, pid, *args, **words))
        return found

    return looked


def _in_a_child(pid: int, look: Callable[[], Any]) -> Any:
    sys.stdout.flush()
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        _work(pid, look, send)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if not said:
        raise ChildProcessError(f"the child that reads within {pid} ended with status {status}")
    done, found = pickle.loads(said)  # from our own child
    if not done:
        raise found
    return found


def _work(pid: int, look: Callable[[], Any], send: int) -> NoReturn:
    try:
        enter_user_namespace(pid)
        said = pickle.dumps((True, look()))
    except OSError as error:
        said = pickle.dumps((False, error))
    except BaseException:
        said = pickle.dumps((False, ChildProcessError(traceback.format_exc()[-400:])))
    with os.fdopen(send, "wb") as pipe:
        pipe.write(said)
    os._exit(0)
