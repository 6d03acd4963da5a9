"""The demo of the README tells its whole story and leaves the host as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lint.tree import ROOT

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(200)]

DEMO = ["sh", str(ROOT / "examples" / "demo.sh")]


def environment() -> dict[str, str]:
    """The interpreter that runs the tests first, so that the demo runs this tree's box."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def traces() -> set[str]:
    """What a demo could leave: its folders, its cgroups, processes that name it."""
    found = {str(p) for p in Path("/tmp").glob("box-demo.*")}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"box-demo." in words:
            found.add(str(process))
    return found


def cgroups() -> set[str]:
    return {str(p) for p in Path("/sys/fs/cgroup").glob("*/box/*")}


def test_the_demo_tells_its_story_and_leaves_nothing() -> None:
    before = traces(), cgroups(), len(Path("/proc/self/mounts").read_text().splitlines())
    done = subprocess.run(DEMO, env=environment(), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "That was the whole story" in done.stdout
    after = traces(), cgroups(), len(Path("/proc/self/mounts").read_text().splitlines())
    assert after == before


def test_an_interrupted_demo_cleans_up() -> None:
    before = traces(), cgroups()
    demo = subprocess.Popen(DEMO, env=environment(), stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("  $ box exec"):
            break
    demo.send_signal(signal.SIGINT)
    demo.stdout.read()
    assert demo.wait(60) == 130
    time.sleep(0.2)
    assert (traces(), cgroups()) == before
