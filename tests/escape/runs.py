"""One run of the suite against a box without some walls, and what it must find.

Walls that no check confuses with one another are taken away together, so that few machines have to
be booted. It must not judge what the suite says beyond its JSON report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.escape.asuser import somebody
from tests.vm.harness import ROOT, SIDE_BY_SIDE
from tests.vm.people import PYTHON

SUITE = ROOT / "security" / "escape-test.sh"
SECONDS = 300  # a run takes about 20 on an idle host
# The runs of --all are alone: one of them loads the host as hard as a guest can.
AT_ONCE = 1 if os.environ.get("BOX_TEST_ALL") == "1" else 2
# A factor on all limits of a run. Those that others are beside wait as long as the suite's own do.
SCALE = 1.0 if AT_ONCE == 1 else float(SIDE_BY_SIDE)


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
    scale: float = SCALE
    ordinary: bool = False
    """Run by an ordinary user, who attacks from their own account."""

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


Results = dict[str, tuple[str, str]]  # check -> (result, reading)


class Made:
    """Runs at work, two at a time: each waits for its machines for a part of its time.

    `begin` says what will be asked for, in that order; `end` forgets what has not begun.
    """

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(AT_ONCE)
        self._runs: dict[Run, Future[tuple[Results, str]]] = {}

    def begin(self, run: Run) -> None:
        if run not in self._runs:
            self._runs[run] = self._workers.submit(_make, run)

    def found(self, run: Run) -> Results:
        """What a run found, which is made once. Raises what went wrong in it."""
        self.begin(run)
        results, said = self._runs[run].result()
        print(said)
        return results

    def end(self) -> None:
        self._workers.shutdown(cancel_futures=True)


def _make(run: Run) -> tuple[Results, str]:
    only = [word for id in run.checks for word in ("--only", id)]
    words = (run.isolation, "--accel", run.accel, "--scale", str(run.scale), *only)
    attack = _as_somebody if run.ordinary else _as_root
    done, text = attack(f"-m tests.escape.saboteur '{','.join(run.walls)}' --", words)
    said = f"{done.stdout} {done.stderr}"
    assert text, f"the suite wrote no report: {said}"
    told: dict[str, Any] = json.loads(text)
    assert done.returncode == (1 if run.fail else 0), said
    return {one["id"]: (one["result"], one["reading"]) for one in told["checks"]}, said


Attack = tuple[subprocess.CompletedProcess[str], str]


def _as_root(box: str, words: Sequence[str]) -> Attack:
    with tempfile.TemporaryDirectory(prefix="boxtest-") as folder:
        report = Path(folder) / "report.json"
        done = suite(f"{sys.executable} {box}", *words, "--json", str(report))
        return done, report.read_text() if report.exists() else ""


def _as_somebody(box: str, words: Sequence[str]) -> Attack:
    with somebody() as made:
        done = made.suite(f"{PYTHON} {box}", *words, seconds=SECONDS)
        return done, made.report.read_text() if made.report.exists() else ""
