"""The only door through which short-lived child processes are started.

Every failure carries what is needed to replay it by hand: argv, status and the last lines printed.
It must not be used for a VMM or anything else that outlives the call; those go through the jail
launcher.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn, TypeVar

from specs.errors import BoxError, CommandError, HostError

T = TypeVar("T")

LAST_LINES = 20
# PATH is fixed: a caller's PATH may not name sbin, and what root runs must not depend on it.
SEARCH = "/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {"PATH": SEARCH, "LC_ALL": "C.UTF-8"}
# How soon a call that nobody waits for any more is given up, in seconds.
_STOP_SECONDS = 0.2


class GivenUp(BoxError):
    """Nobody waits for the result any more."""


def run(
    argv: Sequence[str],
    *,
    timeout: float = 60.0,
    cwd: Path | None = None,
    data: bytes | None = None,
    env: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    watch: Callable[[int], None] | None = None,
) -> str:
    """Run a program to its end with no inherited descriptor; return what it printed (stdout and
    stderr). `data` is its standard input, which is empty otherwise; `env` is added to the few
    variables it has. `watch` is called with its PID now and then, while it runs,
    and what it raises ends it.

    Raises CommandError when it fails or takes longer than `timeout` seconds, HostError when it is
    not installed, GivenUp when `stop` is set meanwhile.
    """
    child = _start(argv, data is not None, subprocess.STDOUT, cwd, env)
    output, _ = _ended(child, argv, data, timeout, stop, watch)
    return output.decode("utf-8", "replace")


def output(
    argv: Sequence[str],
    *,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> bytes:
    """What a program writes to its standard output, byte for byte. Raises as `run` does."""
    child = _start(argv, False, subprocess.PIPE, None, env)
    return _ended(child, argv, None, timeout, stop)[0]


def feed(argv: Sequence[str], write: Callable[[IO[bytes]], T], *, timeout: float) -> T:
    """Run a program whose standard input `write` writes, in this thread; returns what that returns.

    Raises as `run` does, and what `write` raises; the program has ended then.
    """
    printed = os.memfd_create("output", os.MFD_CLOEXEC)
    try:
        child = _start(argv, True, subprocess.STDOUT, None, None, printed)
        assert child.stdin is not None
        overdue = threading.Timer(timeout, _kill, (child,))
        overdue.daemon = True
        overdue.start()
        began, result = time.monotonic(), list[T]()
        try:
            with contextlib.suppress(BrokenPipeError):  # its status says why
                result.append(write(child.stdin))
                child.stdin.close()
            if child.wait() == 0 and result:
                return result[0]
        except BaseException:
            _kill(child)
            raise
        finally:
            overdue.cancel()
            with contextlib.suppress(OSError):
                child.stdin.close()
            child.wait()
        late = time.monotonic() - began >= timeout
        _fail(argv, child.returncode, os.pread(printed, 1 << 20, 0), timeout if late else None)
    finally:
        os.close(printed)


def _start(
    argv: Sequence[str],
    piped: bool,
    stderr: int,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stdout: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**_ENVIRONMENT, **(env or {})},
            cwd=cwd,
            start_new_session=True,
            close_fds=True,
        )
    except FileNotFoundError as error:
        raise HostError(
            f"{argv[0]} is not installed", fix="./dev setup installs what is missing"
        ) from error


def _ended(
    child: subprocess.Popen[bytes],
    argv: Sequence[str],
    data: bytes | None,
    timeout: float,
    stop: threading.Event | None,
    watch: Callable[[int], None] | None = None,
) -> tuple[bytes, bytes]:
    limit = time.monotonic() + timeout
    attended = stop is not None or watch is not None
    while True:
        left = max(0.0, limit - time.monotonic())
        try:
            # What was read before a time-out is kept by Popen and given with the rest.
            printed, said = child.communicate(
                data, timeout=min(left, _STOP_SECONDS) if attended else left
            )
            break
        except subprocess.TimeoutExpired:
            given_up = stop is not None and stop.is_set()
            if not given_up and time.monotonic() < limit:
                if watch is not None:
                    _watched(child, watch)
                continue
        _kill(child)
        printed, said = child.communicate()
        if given_up:
            raise GivenUp(f"{argv[0]} was ended: nobody waits for it any more")
        _fail(argv, -signal.SIGKILL, printed + (said or b""), timeout)
    if child.returncode != 0:
        _fail(argv, child.returncode, printed + (said or b""), None)
    return printed, said


def _watched(child: subprocess.Popen[bytes], watch: Callable[[int], None]) -> None:
    try:
        watch(child.pid)  # not waited for yet, so its PID is nobody else's
    except BaseException:
        _kill(child)
        child.communicate()
        raise


def _kill(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # another thread has just waited for it
            os.killpg(child.pid, signal.SIGKILL)


def _fail(argv: Sequence[str], status: int, printed: bytes, late: float | None) -> NoReturn:
    what = f"took longer than {late:g} s" if late is not None else f"failed with status {status}"
    raise CommandError(
        f"{argv[0]} {what}", argv=tuple(argv), status=status, last_lines=_tail(printed)
    ) from None


def _tail(printed: bytes) -> str:
    return "\n".join(printed.decode("utf-8", "replace").splitlines()[-LAST_LINES:])
