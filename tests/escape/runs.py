"""One run of the suite against a box without some walls, and what it must find.

Walls that no check confuses with one another are taken away together, so that few machines have to
be booted. It must not judge what the suite says beyond its JSON report.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.vm.harness import ROOT

SUITE = ROOT / "security" / "escape-test.sh"
SECONDS = 300  # a run takes about 20 on an idle host


@dataclass(frozen=True)
class Run:
    """`walls` are taken away; then exactly the checks of `fail` fail, each with a reading that its
    pattern is found in, and those of `hold` pass: walls that stand are not doubted.
    """

    walls: tuple[str, ...]
    fail: tuple[tuple[str, str], ...]
    hold: tuple[str, ...]
    isolation: str = "strict"
    accel: str = "tcg"
    scale: float = 1.0

    @property
    def checks(self) -> list[str]:
        """What the suite is asked for; what it does after every run needs not be asked for."""
        asked = [*dict(self.fail), *self.hold]
        return [id for id in asked if not id.startswith("after.")]


def suite(box: str, *words: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """The suite as a user runs it, against this box command."""
    return subprocess.run(
        [str(SUITE), box, *words], cwd=ROOT, capture_output=True, text=True, timeout=seconds
    )


@cache
def found(run: Run) -> dict[str, tuple[str, str]]:
    """Check -> (result, reading) of a run, made once."""
    box = f"{sys.executable} -m tests.escape.saboteur '{','.join(run.walls)}' --"
    only = [word for id in run.checks for word in ("--only", id)]
    with tempfile.TemporaryDirectory(prefix="boxtest-") as folder:
        report = Path(folder) / "report.json"
        words = (
            run.isolation,
            "--accel",
            run.accel,
            "--scale",
            str(run.scale),
            *only,
            "--json",
            str(report),
        )
        done = suite(box, *words)
        print(done.stdout, done.stderr)
        assert report.exists(), f"the suite wrote no report: {done.stdout} {done.stderr}"
        told: dict[str, Any] = json.loads(report.read_text())
    assert done.returncode == (1 if run.fail else 0), done.stdout
    return {one["id"]: (one["result"], one["reading"]) for one in told["checks"]}
