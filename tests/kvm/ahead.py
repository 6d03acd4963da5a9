"""A run of the lab that a session starts before its first test and asks for when its turn comes.

The lab keeps one core busy for minutes and needs nothing of the other, so a process of its own runs
it beside tests that do not mind (conftest.py knows which). That process and the lab's machine end
with the session, whatever becomes of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from tests.lint.tree import ROOT

PATIENCE_SECONDS = 20  # for what is asked to end; then it is killed
LOOK_SECONDS = 0.2
URGENT = -5  # as in nice(1)


class Ahead:
    """A command at work in a session of its own. What it says goes to a file and is shown later."""

    def __init__(self, command: list[str]) -> None:
        """`command` is given one word more, the file to leave its result in."""
        self._scratch = tempfile.TemporaryDirectory(prefix="boxahead-")
        folder = Path(self._scratch.name)
        self._said, self._result = folder / "console", folder / "result.json"
        with open(self._said, "wb") as said:
            self.process = subprocess.Popen(
                # SIGTERM when this session dies, even by SIGKILL
                ["setpriv", "--pdeathsig", "TERM", *command, str(self._result)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def ended(self) -> bool:
        """Without asking for its status: until then no other process can have its number."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self.process.returncode is not None or bool(
            os.waitid(os.P_PID, self.process.pid, options)
        )

    def result(self, seconds: float, show: Callable[[str], object]) -> str:
        """Show what was and is being said until the command has ended; what it left.

        Raises AssertionError when it takes more than `seconds` from now on, or left nothing.
        """
        deadline = time.monotonic() + seconds
        with open(self._said, "rb") as said:
            while not (over := self.ended()) or said.peek():
                show(said.read().decode("utf-8", "replace"))
                assert over or time.monotonic() < deadline, f"no end within {seconds:g} s"
                time.sleep(0 if over else LOOK_SECONDS)
        assert self._result.exists(), "it ended without a result"
        return self._result.read_text()

    def end(self, patience: float = PATIENCE_SECONDS) -> None:
        """Nothing of it is left: it has ended, or is asked to, or is killed with its children."""
        if self.process.returncode is not None:
            return
        if not self.ended():
            self.process.terminate()
            deadline = time.monotonic() + patience
            while not self.ended() and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._scratch.cleanup()


def leave(number: int, frame: FrameType | None) -> None:
    """As at any other end: what was started is stopped, what was made for a while is removed."""
    sys.exit(128 + number)


def main(*words: str) -> None:
    """The lab's job that these words ask for; its outcome goes to the file named last."""
    from tests.kvm.job import Job
    from tests.kvm.lab import run

    signal.signal(signal.SIGTERM, leave)
    # Inside, every limit of time is of a processor that is slow enough when it has one to itself.
    with suppress(OSError):  # only root may, and not everywhere
        Path("/proc/self/autogroup").write_text(
            "-5"
        )  # sched(7): where sessions share, not processes
    *asked, result = words
    outcome = run(Job.named(asked))
    Path(result).write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main(*sys.argv[1:])
