"""The controller's side of `innerworker`: work inside a sandbox's namespaces.

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
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reconcilers.network import inner, innerread, readlinks
from reconcilers.network.innerviews import Gone, Process, View, Views
from reconcilers.network.wanted import Wanted
from specs.errors import HostError
from specs.names import HostNames

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from reconcilers.network.innerworker import main; main()"
)
_TIMEOUT = 30.0  # seconds; an answer takes some ten milliseconds
_LOOK_TIMEOUT = 10.0
_ANSWER_MAX = 1 << 20  # bytes
_DESCRIPTORS_MAX = 32
_MADE = 3  # descriptors of a new network


@dataclass(frozen=True, slots=True)
class Made:
    """Descriptors, the caller's: the VMM's network namespace, its tap, and pasta's."""

    space: int
    tap: int
    uplink: int


class Inside:
    """Makes networks, and reads them; one request to the worker at a time, whatever thread asks."""

    def __init__(self) -> None:
        self._worker = Worker()
        self._views = Views(self._opened)

    def build(self, wanted: Wanted, keeper: Process) -> Made:
        """Raises HostError, Gone."""
        _, descriptors = self._worker.ask(ask="build", wanted=inner.to_text(wanted), keeper=keeper)
        if len(descriptors) != _MADE:
            _close(descriptors)
            raise HostError("the worker made a network and did not hand it over")
        return Made(*descriptors)

    def observe(self, wanted: Wanted, keeper: Process, vmm: Process, known: int) -> innerread.Found:
        """Raises HostError, Gone."""
        with readlinks.worded("read"), self._views.of(wanted, keeper, vmm) as view:
            return innerread.observe(wanted, view, known, lambda: self._compared(wanted, keeper))

    def let_go(self, names: HostNames) -> None:
        """Hold nothing of a sandbox's network any more. Never waits."""
        self._views.let_go(names)

    def mend(self, wanted: Wanted, keeper: Process, vmm: Process) -> None:
        """Raises HostError, Gone."""
        self._worker.ask(ask="mend", wanted=inner.to_text(wanted), keeper=keeper, vmm=vmm)

    def _compared(self, wanted: Wanted, keeper: Process) -> tuple[str, int]:
        of = {"wanted": inner.to_text(wanted), "keeper": keeper}
        answer, _ = self._worker.ask(_LOOK_TIMEOUT, ask="compare", **of)
        return str(answer["wrong"]), int(answer["generation"])

    def _opened(self, wanted: Wanted, keeper: Process, vmm: Process) -> View:
        of = {"wanted": inner.to_text(wanted), "keeper": keeper, "vmm": vmm}
        answer, descriptors = self._worker.ask(_LOOK_TIMEOUT, ask="open", **of)
        names = [list(map(str, each)) for each in answer["opened"]]
        if len(descriptors) != sum(map(len, names)):
            _close(descriptors)
            raise HostError("the worker opened a network and did not hand it over")
        left = iter(descriptors)
        opened = [dict(zip(each, left, strict=False)) for each in names]
        return View(tuple(answer["spaces"]), opened)


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)


class Worker:
    """One process and its socket."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, seconds: float = _TIMEOUT, /, **request: Any) -> tuple[dict[str, Any], list[int]]:
        """Raises HostError, also when there is no answer for so long; Gone."""
        with self._lock:
            try:
                line = json.dumps(request).encode() + b"\n"
                answer, descriptors = self._exchange(line, seconds)
            except (OSError, ValueError) as error:
                self.close()
                raise HostError(f"the network worker does not answer: {error}") from error
        if "gone" in answer:
            raise Gone(answer["gone"])
        if "error" in answer:
            raise HostError(str(answer["error"]), fix=str(answer["fix"]))
        return answer, descriptors

    def _exchange(self, line: bytes, seconds: float) -> tuple[dict[str, Any], list[int]]:
        channel, limit = self._started(), time.monotonic() + seconds
        channel.settimeout(seconds)
        channel.sendall(line)
        buffer, descriptors = b"", list[int]()
        try:
            while not buffer.endswith(b"\n"):
                channel.settimeout(max(0.001, limit - time.monotonic()))
                part, given, _, _ = socket.recv_fds(
                    channel, 1 << 16, _DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
                )
                descriptors += given
                buffer += part
                if not part or len(buffer) > _ANSWER_MAX:
                    raise OSError("it ended or said too much")
            answer: dict[str, Any] = json.loads(buffer)
        except BaseException:
            _close(descriptors)
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
