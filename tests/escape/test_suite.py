"""The escape suite as a whole: what it says here, what its calls answer, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.escape.runs import SUITE, suite
from tests.escape.threat_model import differences
from tests.escape.traces import Traces
from tests.vm.harness import ACCEL, ROOT, SIDE_BY_SIDE, until

BOX = f"{sys.executable} -m controller.cli.main"
WHOLE_SECONDS = 420  # a whole run takes two minutes on an idle host
LOAD = "load"  # the group that compares what the host can do with and without a busy guest
# What cannot be proved, and where. Everything else passes.
UNPROVED = {"inside.token"} | ({"outside.hardware"} if ACCEL == "tcg" else set())
# Whether a guest gets enough of a busy host's CPUs to be a load is up to what else runs there.
DEPENDS = {"load.forks", "load.memory", "load.disk"}


@dataclass
class Running:
    """A suite at work, with a place of its own for temporary files."""

    process: subprocess.Popen[str]
    traces: Traces
    report: Path

    def end(self, seconds: float) -> str:
        """What it printed, once it has ended."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the suite does not end"
            self.traces.look()
            time.sleep(0.05)
        said, errors = self.process.communicate()
        return said + errors

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.report.read_text())
        return told


@contextlib.contextmanager
def running(*words: str, box: str = BOX) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="boxtest-") as folder:
        place, report = Path(folder) / "tmp", Path(folder) / "report.json"
        place.mkdir()
        process = subprocess.Popen(
            [str(SUITE), box, *words, "--json", str(report)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(place)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield Running(process, Traces(place), report)
        finally:
            if process.poll() is None:  # a failed test: the suite still cleans up
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=60)
                process.kill()


@pytest.mark.needs_root
@pytest.mark.timeout(WHOLE_SECONDS + 30)
@pytest.mark.parametrize("isolation", ["strict", "standard"])
def test_suite_finds_no_hole_and_agrees_with_the_threat_model(isolation: str) -> None:
    """All but the one group that wants the host to itself."""
    wanted = listed(lambda group: group != LOAD)
    asked = dict.fromkeys(id.partition(".")[0] for id in wanted)
    only = [word for group in asked for word in ("--only", group)]
    no_hole(isolation, wanted, ["--scale", f"{SIDE_BY_SIDE}", *only])


@pytest.mark.needs_root
@pytest.mark.quiet
@pytest.mark.timeout(WHOLE_SECONDS + 30)
@pytest.mark.parametrize("isolation", ["strict", "standard"])
def test_load_of_a_guest_is_no_load_for_the_host(isolation: str) -> None:
    no_hole(isolation, listed(lambda group: group == LOAD), ["--only", LOAD])


@pytest.mark.needs_root
@pytest.mark.quiet
@pytest.mark.long
@pytest.mark.timeout(WHOLE_SECONDS + 30)
@pytest.mark.parametrize("isolation", ["strict", "standard"])
def test_whole_suite_in_one_run(isolation: str) -> None:
    no_hole(isolation, listed(lambda group: True), [])


def listed(of_group: Callable[[str], bool]) -> list[str]:
    """The checks there are, of some groups."""
    lines = suite("box", "--list").stdout.splitlines()
    return [id for id in (line.split()[0] for line in lines) if of_group(id.partition(".")[0])]


def no_hole(isolation: str, wanted: Sequence[str], words: Sequence[str]) -> None:
    """A run with these words performs the checks `wanted`, and each proves what it should."""
    with running(isolation, "--accel", ACCEL, *words) as made:
        said = made.end(WHOLE_SECONDS)
        print(said)
        told = made.told()
        results = {one["id"]: one["result"] for one in told["checks"]}
        assert [id for id, result in results.items() if result == "FAIL"] == [], said
        warned = {id for id, result in results.items() if result == "WARN"}
        assert warned - DEPENDS == UNPROVED & set(wanted), said
        assert made.process.returncode == 0
        assert wanted and results.keys() == {*wanted, "after.clean"}
        assert all(one["reading"] and one["proves"] for one in told["checks"])
        assert (told["isolation"], told["user"], told["passed"]) == (isolation, "root", True)
        assert differences(told) == []
        assert made.traces.instances, "no home was seen: nothing was compared"
        nothing_left(made)


def nothing_left(made: Running) -> None:
    """Whoever was killed in the end may need a moment to be gone."""
    left = made.traces.left
    until(lambda: not left(), 10, lambda: f"nothing is left: {left()}")


@pytest.mark.needs_root
@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_interrupted_suite_cleans_up(number: signal.Signals) -> None:
    with running("standard", "--accel", ACCEL, "--only", "outside") as made:

        def has_vmms() -> bool:
            assert made.process.poll() is None, made.process.communicate()
            made.traces.look()
            return len(made.traces.vmms()) == 2

        until(has_vmms, 60, "two machines run")
        made.process.send_signal(number)
        said = made.end(90)
        assert made.process.returncode == 130, said
        assert "interrupted" in said
        assert made.told()["checks"] is not None
        nothing_left(made)


@pytest.mark.needs_root
def test_box_that_does_not_work_is_a_failure_and_not_a_pass() -> None:
    with running("strict", "--accel", "tcg", box="/bin/false") as made:
        made.end(60)
        told = made.told()
        assert made.process.returncode == 1 and told["passed"] is False
        assert [(one["id"], one["result"]) for one in told["checks"]][:1] == [
            ("suite.ready", "FAIL")
        ]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("box", "lax"),
        ("box", "strict", "--only", "outside.nothing"),
        ("box", "--no-such-option"),
    ],
    ids=["no box", "isolation", "check", "option"],
)
def test_wrong_call_answers_2(words: tuple[str, ...]) -> None:
    done = subprocess.run([str(SUITE), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr and not done.stdout
