"""A suite that skips must say so, and must not be able to turn green by skipping in CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lint.tree import ROOT

SAMPLE = """
import conftest, pytest
conftest.PROBES["kvm"] = lambda: "no such hardware"

@pytest.mark.needs_kvm
def test_with_hardware(): pass

@pytest.mark.long
def test_many_times(): pass

def test_plain(): pass

def test_failing(evidence, tmp_path):
    (tmp_path / "console.log").write_text("last words")
    evidence.watch(tmp_path, "home")
    assert False
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    (tmp_path / "test_other.py").write_text("def test_elsewhere(): pass\n")
    return tmp_path


def run(suite: Path, pick: str, **environment: str) -> str:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=prepend"]
    argv += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(suite), "-k", pick, str(suite)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BOX_TEST_")}
    clean |= {"BOX_TEST_RESULTS": str(suite / "results"), **environment}
    return subprocess.run(argv, env=clean, cwd=suite, capture_output=True, text=True).stdout


def test_a_missing_capability_is_a_skip_with_its_reason_counted(suite: Path) -> None:
    output = run(suite, "hardware or plain")
    assert "    1  needs kvm: no such hardware" in output
    assert "1 passed, 1 skipped" in output.splitlines()[-1]


def test_a_required_capability_that_is_missing_is_a_failure(suite: Path) -> None:
    output = run(suite, "hardware or plain", BOX_TEST_REQUIRE="kvm")
    assert "BOX_TEST_REQUIRE names kvm, but no such hardware" in output
    assert "1 passed" in output.splitlines()[-1]
    assert "1 error" in output.splitlines()[-1]


def test_an_unknown_requirement_stops_the_run(suite: Path) -> None:
    assert "passed" not in run(suite, "plain", BOX_TEST_REQUIRE="kvn")


def test_the_time_of_each_file_stands_before_the_count(suite: Path) -> None:
    *lines, count = run(suite, "plain or elsewhere").splitlines()
    assert "2 passed" in count
    shown = [line.split("  ")[-1] for line in lines if re.match(r" +\d+\.\d s  ", line)]
    assert sorted(shown) == ["test_other.py", "test_sample.py"]


def test_long_tests_run_only_when_all_are_asked_for(suite: Path) -> None:
    assert "1 passed, 1 skipped" in run(suite, "many or plain").splitlines()[-1]
    assert "2 passed" in run(suite, "many or plain", BOX_TEST_ALL="1").splitlines()[-1]


def test_a_failure_keeps_its_evidence_and_says_where(suite: Path) -> None:
    output = run(suite, "failing")
    kept = suite / "results" / "test_sample.py-test_failing" / "home" / "console.log"
    assert kept.read_text() == "last words"
    assert str(kept.parent.parent) in output
