"""`box exec NAME -- true` as a whole process, over the interpreter doing nothing; and `box run`,
over the boot that is in it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import subject
from bench.bare import Bare
from bench.line import SMALL
from bench.measure import Row, Target, ratios
from tests.vm.harness import ROOT, until

# Milliseconds are measured, so more pairs than elsewhere cost nothing and say more.
PAIRS_FACTOR = 5


def execute(repeat: int) -> list[Row]:
    """Interleaved pairs of the two processes, wall-clock time of each."""
    ours: list[float] = []
    bare: list[float] = []
    # The interpreter itself: a version manager's shim or a virtual environment's link costs extra.
    nothing = [os.path.realpath(sys.executable), "-I", "-c", "pass"]
    with subject.new_home() as home, TemporaryDirectory(prefix="boxbench-") as scratch:
        home.put("guest", SMALL)
        home.ready("guest")
        command = [*_box(Path(scratch)), "exec", "guest", "--", "true"]
        for _ in range(3):  # the first command in a guest translates its code
            _seconds(command, home.env)
        subject.wait_quiet(subject.pid_of(home))
        for turn in range(repeat * PAIRS_FACTOR):
            pair = [(command, ours), (nothing, bare)]
            for argv, samples in pair if turn % 2 else reversed(pair):
                samples.append(_seconds(argv, home.env) * 1000)
    return [
        Row("exec", "box exec NAME -- true", "ms", tuple(ours), Target(150)),
        Row("exec", "python -I -c pass", "ms", tuple(bare)),
        Row("exec", "box exec over python", "x", ratios(ours, bare), Target(8, aim=4)),
    ]


def fresh(repeat: int) -> list[Row]:
    """Interleaved pairs of a whole `box run NAME -- true` and of bare QEMU's boot."""
    ours: list[float] = []
    bare: list[float] = []
    with subject.new_home() as home, TemporaryDirectory(prefix="boxbench-") as scratch:
        home.put("guest", SMALL)
        home.ready("guest")
        yardstick = Bare.like(home, "guest")
        home.put("guest", SMALL + subject.STOPPED)
        until(lambda: not home.vmms("guest"), 60, "guest is stopped")
        command = [*_box(Path(scratch)), "run", "guest", "--", "true"]

        def measure_ours() -> None:
            ours.append(_seconds(command, home.env))

        def measure_bare() -> None:
            bare.append(asyncio.run(yardstick.boot()))

        halves = [measure_ours, measure_bare]
        for turn in range(repeat):
            for half in halves if turn % 2 else reversed(halves):
                subject.wait_quiet(subject.pid_of(home))
                subject.wait_host_idle()
                half()
    return [
        Row("run", "box run NAME -- true", "s", tuple(ours)),
        Row("run", "bare QEMU to the agent's word", "s", tuple(bare)),
        Row("run", "box run over bare QEMU", "x", ratios(ours, bare), Target(1.5)),
    ]


def _box(scratch: Path) -> list[str]:
    """The installed console script; in a tree that is not installed, one like it."""
    installed = Path(sys.executable).with_name("box")
    if installed.exists():
        return [str(installed)]
    script = scratch / "box"
    script.write_text(
        f"#!{sys.executable}\nimport re\nimport sys\n"
        "from controller.cli.main import main\n\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return [str(script)]


def _seconds(argv: Sequence[str], environment: dict[str, str]) -> float:
    begun = time.monotonic()
    subprocess.run(argv, env=environment, cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    return time.monotonic() - begun
