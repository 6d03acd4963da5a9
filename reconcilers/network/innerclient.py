"""The controller's side of `innerworker` and `innerreader`: work inside a sandbox's namespaces.

The worker, one for the whole controller, is started when it is first needed and again when it died.
It must never take silence for an answer.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

from reconcilers.confinement import inside
from reconcilers.network import inner, innerread
from reconcilers.network.wanted import Wanted
from specs.errors import HostError

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from reconcilers.network.innerworker import main; main()"
)
_READS = "reconcilers.network.innerreader"
_TIMEOUT = 30.0  # seconds; an answer takes some ten milliseconds
_ANSWER_MAX = 1 << 20  # bytes
_DESCRIPTORS_MAX = 3

Process = tuple[int, int]  # PID and start time


@dataclass(frozen=True, slots=True)
class Made:
    """Descriptors, the caller's: the VMM's network namespace, its tap, and pasta's."""

    space: int
    tap: int
    uplink: int


class Gone(Exception):
    """A process whose namespaces were to be entered has ended."""


class Inside:
    """Makes and reads networks; each of both takes one request at a time, whatever thread asks."""

    def __init__(self) -> None:
        self._maker = Worker()

    def build(self, wanted: Wanted, keeper: Process) -> Made:
        """Raises HostError, Gone."""
        _, descriptors = self._maker.ask(ask="build", wanted=inner.to_text(wanted), keeper=keeper)
        if len(descriptors) != _DESCRIPTORS_MAX:
            for each in descriptors:
                os.close(each)
            raise HostError("the worker made a network and did not hand it over")
        return Made(*descriptors)

    def observe(self, wanted: Wanted, keeper: Process, vmm: Process, known: int) -> innerread.Found:
        """Raises HostError, Gone."""
        of = {"wanted": inner.to_text(wanted), "keeper": keeper, "vmm": vmm, "known": known}
        try:
            answer = inside.ask(_READS, _TIMEOUT, ask="observe", pid=keeper[0], **of)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise Gone(f"process {keeper[0]} has ended") from error
        except OSError as error:
            raise HostError(f"the network cannot be read: {error}") from error
        if "gone" in answer:
            raise Gone(answer["gone"])
        if "failed" in answer:
            raise HostError(str(answer["failed"]), fix=str(answer["fix"]))
        return innerread.Found(**answer["found"])

    def mend(self, wanted: Wanted, keeper: Process, vmm: Process) -> None:
        """Raises HostError, Gone."""
        self._maker.ask(ask="mend", wanted=inner.to_text(wanted), keeper=keeper, vmm=vmm)


class Worker:
    """One process and its socket."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, **request: Any) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            try:
                answer, descriptors = self._exchange(json.dumps(request).encode() + b"\n")
            except (OSError, ValueError) as error:
                self.close()
                raise HostError(f"the network worker does not answer: {error}") from error
        if "gone" in answer:
            raise Gone(answer["gone"])
        if "error" in answer:
            raise HostError(str(answer["error"]), fix=str(answer["fix"]))
        return answer, descriptors

    def _exchange(self, line: bytes) -> tuple[dict[str, Any], list[int]]:
        channel = self._started()
        channel.sendall(line)
        buffer, descriptors = b"", list[int]()
        try:
            while not buffer.endswith(b"\n"):
                part, given, _, _ = socket.recv_fds(
                    channel, 1 << 16, _DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
                )
                descriptors += given
                buffer += part
                if not part or len(buffer) > _ANSWER_MAX:
                    raise OSError("it ended or said too much")
            answer: dict[str, Any] = json.loads(buffer)
        except BaseException:
            for each in descriptors:
                os.close(each)
            raise
        return answer, descriptors

    def _started(self) -> socket.socket:
        if self._channel is None or self._process is None or self._process.poll() is not None:
            self.close()
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, json.dumps(sys.path)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            ours.settimeout(_TIMEOUT)
            self._channel = ours
        return self._channel

    def close(self) -> None:
        """Ends the process; the next request starts another."""
        process, self._process = self._process, None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # with a child that is at work
            process.wait()
