"""What an ordinary user's controller may do to a VMM of another identity from within the VMM's
user namespace alone: the controller's side of `insidereader`.

One process for the whole controller, started when it is first needed and again when it died: to
move a VMM on cgroup v1, and to look at descriptors where copies of them are forbidden. It must
never take silence for an answer. Whoever asks may wait, so it belongs into a thread.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reconcilers.confinement.policy import Confinement
from reconcilers.confinement.procfds import Held, read_copies, read_held
from specs.errors import HostError

_BOOTSTRAP = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from reconcilers.confinement.insidereader import main; main()"
)
_PACKAGES = str(Path(__file__).resolve().parents[2])
_TIMEOUT = 5.0  # seconds; an answer takes milliseconds
_ANSWER_MAX = 1 << 20  # bytes
# What a container's filter of system calls answers, Yama where it forbids all tracing, and kernels
# before 5.6 (pidfd_getfd) and 5.14 (/proc/PID/fdinfo of another identity)
_REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)


def read_held_of(pid: int, want: Confinement, given: Sequence[str]) -> Held:
    """What the process holds, read from where it can be read. Raises OSError, HostError."""
    if not _is_hidden(want):
        return read_held(pid, given)
    try:
        return read_copies(pid, given)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    held = _READER.ask(ask="held", pid=pid, given=list(given))["held"]
    foreign, strange, environment, kvm = held
    return Held(tuple(foreign), tuple(strange), int(environment), tuple(kvm))


def attach(pid: int, want: Confinement, files: Sequence[str]) -> None:
    """Moves a process of another identity into the groups of these files. Raises OSError."""
    maps = want.user_namespace
    if maps is None or not _is_hidden(want):
        for path in files:
            Path(path).write_text(str(pid))
        return
    ids = [maps.inside_uid(want.uid), maps.inside_gid(want.gid)]
    _READER.ask(ask="attach", pid=pid, files=list(files), ids=ids)


def _is_hidden(want: Confinement) -> bool:
    """Whether its directories in /proc belong to an identity that is neither root's nor ours."""
    return want.user_namespace is not None and os.geteuid() not in (0, want.uid)


class Reader:
    """The process and its two pipes; one request at a time, whatever thread asks."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Raises OSError with the errno the reader met, HostError when it does not answer."""
        with self._lock:
            try:
                answer = self._exchange(json.dumps(request).encode() + b"\n")
            except (OSError, ValueError) as error:
                self.close()
                raise HostError(f"the reader process does not answer: {error}") from error
        if "error" in answer:
            number = int(answer["errno"])
            if number:
                raise OSError(number, str(answer["error"]))
            raise HostError(f"the reader process failed: {answer['error']}")
        return answer

    def _exchange(self, line: bytes) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        buffer, limit = b"", time.monotonic() + _TIMEOUT
        while not buffer.endswith(b"\n"):
            if not waiting.poll(max(0.0, limit - time.monotonic()) * 1000):
                raise TimeoutError("in time")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part or len(buffer) > _ANSWER_MAX:
                raise OSError("it ended or said too much")
            buffer += part
        answer: dict[str, Any] = json.loads(buffer)
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGES],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        return self._process

    def close(self) -> None:
        """Ends the process; the next request starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.kill()
        process.wait()


_READER = Reader()
atexit.register(_READER.close)
