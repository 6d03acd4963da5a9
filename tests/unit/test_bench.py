"""The benchmarks' own arithmetic: what counts as met, and that the instruments see what happens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import subject
from bench.measure import Row, Target, ratios, table
from tests.vm.harness import ROOT


def row(*samples: float, most: float | None = None, aim: float | None = None) -> Row:
    target = None if most is None else Target(most, aim)
    return Row("ready", "over bare QEMU", "x", samples, target)


@pytest.mark.parametrize(
    ("samples", "met"), [((1, 1, 9), True), ((1, 2, 2), True), ((1, 2.01, 3), False)]
)
def test_the_median_decides_whether_a_target_is_met(samples: Sequence[float], met: bool) -> None:
    assert row(*samples, most=2).met is met


def test_a_table_shows_the_miss_beside_its_target() -> None:
    lines = table([row(1, 2, 3, most=1.25), row(1, most=2), row(3, most=4, aim=2), row(5)])
    missed, kept, unaimed, plain = lines.splitlines()[1:]
    assert missed.split()[-6:] == ["2", "3", "x", "<=", "1.25", "MISSED"]
    assert kept.endswith("<= 2  ok")
    assert unaimed.endswith("ok (aim 2)")
    assert plain.endswith("5  x")


def test_ratios_are_made_pair_by_pair() -> None:
    assert ratios([2, 9], [1, 3]) == (2, 3)
    with pytest.raises(ValueError):
        ratios([1], [1, 2])


def test_the_cpu_time_of_another_process_is_its_own() -> None:
    program = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        used = subject.cpu_seconds(child.pid)
        time.sleep(0.1)
        assert 0.3 <= used < 1.5
        assert subject.cpu_seconds(child.pid) - used < 0.05
        child.stdin.close()


def test_a_rewritten_file_and_a_temporary_one_are_both_seen(tmp_path: Path) -> None:
    (tmp_path / "observed.toml").write_text("a = 1\n")
    before = subject.snapshot(tmp_path)
    assert subject.written(before, subject.snapshot(tmp_path)) == []
    time.sleep(0.02)  # the clock of files stands still for up to 10 ms
    new = tmp_path / ".observed.toml.tmp"
    new.write_text("a = 1\n")
    new.rename(tmp_path / "observed.toml")
    changed = subject.written(before, subject.snapshot(tmp_path))
    assert changed == [str(tmp_path), str(tmp_path / "observed.toml")]
    before = subject.snapshot(tmp_path)
    time.sleep(0.02)  # the clock of files stands still for up to 10 ms
    new.write_text("")
    new.unlink()
    assert subject.written(before, subject.snapshot(tmp_path)) == [str(tmp_path)]


@pytest.mark.parametrize("arguments", [("nosuch",), ("--repeat", "6", "idle")])
def test_a_wrong_name_or_too_few_samples_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "error:" in done.stderr
