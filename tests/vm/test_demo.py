"""The demo of the README tells its whole story and leaves the host as it was."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.lint.tree import ROOT
from tests.vm.harness import until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(400)]


class Demo:
    """One run of the script; knows its $BOX_HOME and instance once the story has begun."""

    def __init__(self) -> None:
        argv = ["sh", str(ROOT / "examples" / "demo.sh")]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.told: list[str] = []
        self.home = Path(self.read_until("BOX_HOME is ").split()[2].rstrip(","))
        self.read_until("$ box get")
        self.instance = (self.home / "instance").read_text().strip()

    def read_until(self, words: str) -> str:
        """The next line that holds `words`; the test fails if the story ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(line)
            if words in line:
                return line
        raise AssertionError(f"the demo never said {words!r}:\n{''.join(self.told)}")

    def end(self) -> int:
        assert self.process.stdout is not None
        self.told += self.process.stdout.readlines()
        return self.process.wait(60)

    def left_behind(self) -> list[str]:
        """Whatever on the host still bears the demo's name."""
        found = [str(self.home)] if self.home.exists() else []
        # groups of others come and go meanwhile, which os.walk takes as it is
        found += [top for top, _, _ in os.walk("/sys/fs/cgroup") if top.endswith(self.instance)]
        found += [str(p) for p in Path("/run/box").glob(self.instance)]
        names = (self.instance.encode(), os.fsencode(self.home))
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            except OSError:
                continue
            if any(name in words for name in names):
                found.append(f"{process}: {words[-200:]!r}")
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        return found + [line for line in mounts if self.instance in line or str(self.home) in line]


def nothing_left(demo: Demo) -> None:
    """What it killed may take a moment to end."""
    until(lambda: not demo.left_behind(), 10, lambda: f"nothing is left: {demo.left_behind()}")


def test_the_demo_tells_its_story_and_leaves_nothing() -> None:
    demo = Demo()
    assert demo.end() == 0, "".join(demo.told)
    assert "That was the whole story" in "".join(demo.told)
    nothing_left(demo)


@pytest.mark.parametrize("at", ["$ box wait", "$ box exec"])
def test_an_interrupted_demo_cleans_up(at: str) -> None:
    demo = Demo()
    demo.read_until(at)
    assert demo.left_behind() != []
    demo.process.send_signal(signal.SIGINT)
    assert demo.end() == 130
    nothing_left(demo)
