"""The only door through which short-lived child processes are started.

Every failure carries what is needed to replay it by hand: argv, status and the last lines printed.
It must not be used for a VMM or anything else that outlives the call; those go through the jail
launcher.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from specs.errors import CommandError, HostError

LAST_LINES = 20
# PATH is fixed: a caller's PATH may not name sbin, and what root runs must not depend on it.
SEARCH = "/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {"PATH": SEARCH, "LC_ALL": "C.UTF-8"}


def run(
    argv: Sequence[str],
    *,
    timeout: float = 60.0,
    cwd: Path | None = None,
    data: bytes | None = None,
) -> str:
    """Run a program to its end with no inherited descriptor; return what it printed (stdout and
    stderr). `data` is its standard input, which is empty otherwise.

    Raises CommandError when it fails or takes longer than `timeout` seconds, HostError when it is
    not installed.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            cwd=cwd,
            start_new_session=True,
            close_fds=True,
        )
    except FileNotFoundError as error:
        raise HostError(
            f"{argv[0]} is not installed", fix="./dev setup installs what is missing"
        ) from error
    try:
        output, _ = child.communicate(data, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        raise CommandError(
            f"{argv[0]} took longer than {timeout:g} s",
            argv=tuple(argv),
            status=-signal.SIGKILL,
            last_lines=_tail(output),
        ) from None
    if child.returncode != 0:
        raise CommandError(
            f"{argv[0]} failed with status {child.returncode}",
            argv=tuple(argv),
            status=child.returncode,
            last_lines=_tail(output),
        )
    return output.decode("utf-8", "replace")


def _tail(output: bytes) -> str:
    return "\n".join(output.decode("utf-8", "replace").splitlines()[-LAST_LINES:])
