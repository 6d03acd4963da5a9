"""Runs the launcher process and follows its report to the end, or cleans up after it.

Holds the two pipes between caller and launcher. It must not interpret what a layer does; it only
knows which one failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from reconcilers.confinement import procfile
from reconcilers.confinement.document import Document
from reconcilers.confinement.idmaps import write_maps
from reconcilers.confinement.policy import UserNamespace
from specs.errors import ConfinementError

# -I -S: no environment, no site-packages, no user code; so both search paths are passed
_BOOTSTRAP = "import sys; sys.path += sys.argv[1:3]; from {} import main; main()".format(
    "reconcilers.confinement.launch"
)
_PACKAGES = str(Path(__file__).resolve().parents[2])
_PRCTL = "prctl"  # found without importing it: only the launcher loads it
_REPORT_MAX = 64 * 1024  # bytes; the real one has about 1,000


@dataclass(slots=True)
class Followed:
    """What the report said; `pidfd` belongs to whoever holds this."""

    pid: int = 0
    pidfd: int = -1
    start_time: int = 0
    layer: str = "cgroup"
    ready: dict[str, object] = field(default_factory=dict)
    failed: str = ""
    error: str = ""


class Follower:
    """One launch. The pipe ends close with the caller's ExitStack; `follow` closes those it gave
    to the launcher."""

    def __init__(self, opened: ExitStack) -> None:
        self._status, self.status_end = os.pipe2(os.O_CLOEXEC)
        self.go_end, self._go = os.pipe2(os.O_CLOEXEC)
        self.mapped_end, self._mapped = os.pipe2(os.O_CLOEXEC)
        self._opened = opened
        self._maps: UserNamespace | None = None
        self._ours = {
            self._status, self.status_end, self.go_end, self._go, self.mapped_end, self._mapped,
        }  # fmt: skip
        opened.callback(self._close_all)

    def follow(
        self,
        document: Document,
        deadline: float,
        members: Callable[[], list[int]],
        maps: UserNamespace | None = None,
    ) -> Followed:
        """Returns once the VMM's binary runs. Raises ConfinementError with nothing left behind.

        `members` lists the processes of the sandbox's cgroup. `deadline` is on the monotonic clock.
        `maps` are written when the launcher waits for them in its user namespace.
        """
        seen = Followed()
        self._maps = maps
        errors = os.memfd_create("launcher-errors", os.MFD_CLOEXEC)
        self._opened.callback(os.close, errors)
        process = self._start(document, errors)
        try:
            self._read_report(process.pid, seen, deadline, members)
            process.wait(max(0.1, deadline - time.monotonic()))
            if seen.failed or not seen.ready:
                raise self._error(seen, errors)
        except BaseException as error:
            process.kill()
            process.wait()
            if seen.pidfd >= 0:
                end(seen.pidfd)
            if isinstance(error, (OSError, ValueError, subprocess.TimeoutExpired)):
                seen.error = seen.error or str(error)
                raise self._error(seen, errors) from error
            raise
        return seen

    def _start(self, document: Document, errors: int) -> subprocess.Popen[bytes]:
        paper = os.memfd_create("launch-document", os.MFD_CLOEXEC)
        self._opened.callback(os.close, paper)
        os.write(paper, document.to_bytes())
        os.lseek(paper, 0, os.SEEK_SET)
        given = {paper, document.status, document.go}
        given.update(outside for _, outside in document.descriptors)
        given.update(
            number for number in (document.netns, document.mapped, document.users) if number >= 0
        )
        given.update(share.descriptor for share in document.shares)
        given.update(bind.descriptor for bind in document.binds if bind.descriptor >= 0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGES, _site(), str(paper)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env={},
            cwd="/",
            pass_fds=tuple(given),
            start_new_session=True,
        )
        self._close(self.status_end)  # else the report would never end
        self._close(self.go_end)
        self._close(self.mapped_end)
        return process

    def _close(self, descriptor: int) -> None:
        """Once only: by then another thread may hold the same number."""
        if descriptor in self._ours:
            self._ours.remove(descriptor)
            os.close(descriptor)

    def _close_all(self) -> None:
        for descriptor in tuple(self._ours):
            self._close(descriptor)

    def _read_report(
        self, launcher: int, seen: Followed, deadline: float, members: Callable[[], list[int]]
    ) -> None:
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        buffer = b""
        size = 0
        while True:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError("the launcher did not finish in time")
            data = os.read(self._status, 4096)
            size += len(data)
            if not data:
                return
            if size > _REPORT_MAX:
                raise ValueError("the launcher's report is too long")
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._event(json.loads(line), launcher, seen, members)

    def _event(
        self,
        event: dict[str, object],
        launcher: int,
        seen: Followed,
        members: Callable[[], list[int]],
    ) -> None:
        match event:
            case {"layer": str(name)}:
                seen.layer = name
            case {"map": True} if self._maps is not None and not seen.pid:
                write_maps(launcher, self._maps)
                os.write(self._go, b"m")
            case {"map": True} if self._maps is not None:
                write_maps(seen.pid, self._maps)
                os.write(self._mapped, b"m")
            case {"pid": int(pid)}:
                # the launcher is its parent and does not wait for it before it is told to go
                seen.pid, seen.pidfd = pid, os.pidfd_open(pid)
                facts = procfile.stat_fields(f"/proc/{pid}/stat")
                seen.start_time = procfile.start_time(pid)
                if int(facts[4 - 3]) != launcher or pid not in members():
                    seen.failed, seen.error = "first process", f"{pid} is not the launcher's child"
                    raise ValueError(seen.error)
                os.write(self._go, b"gg")
            case {"ready": dict(ready)}:
                seen.ready = ready
            case {"failed": str(name), "error": str(text)}:
                seen.failed, seen.error = name, text
            case _:
                raise ValueError(f"unknown event {event!r}")

    def _error(self, seen: Followed, errors: int) -> ConfinementError:
        layer = seen.failed or seen.layer
        text = seen.error
        if not text:
            printed = os.pread(errors, 4096, 0).decode("utf-8", "replace").strip()
            text = printed.splitlines()[-1] if printed else "the process ended without a word"
        return ConfinementError(
            f"the layer {layer!r} could not be applied: {text}",
            layer=layer,
            where="jail launcher",
            fix="`box doctor` lists what this host lacks",
        )


@cache
def _site() -> str:
    """The folder python-prctl is installed in."""
    spec = find_spec(_PRCTL)
    if spec is None or spec.origin is None:
        raise ConfinementError(
            "python-prctl is not installed", layer="securebits", fix="./dev setup installs it"
        )
    return str(Path(spec.origin).parent)


def end(pidfd: int) -> None:
    """Ends the process behind a pidfd, waits until it is gone, and closes the descriptor."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    waiting = select.poll()  # not select(2): the number may be above 1,023
    waiting.register(pidfd, select.POLLIN)
    waiting.poll(5000)  # readable once it has ended
    with contextlib.suppress(ChildProcessError):  # it is init's child when we are no subreaper
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    os.close(pidfd)
