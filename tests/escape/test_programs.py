"""The programs of the attacks can be compiled on one machine and used on one without a compiler."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

from tests.lint.tree import ROOT
from tests.tracebacks import no_traceback

SUITE = ROOT / "security/escape-test.sh"
SOURCES = ROOT / "security/escape"


def suite(*words: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SUITE), *words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


def asked_for() -> set[str]:
    """The C files that the checks name in `arena.compiled("...")`."""
    found = set()
    for file in SOURCES.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr == "compiled":
                assert isinstance(node, ast.Call)
                (source,) = node.args
                assert isinstance(source, ast.Constant), f"{file.name}, line {node.lineno}"
                found.add(str(source.value))
    return found


@pytest.fixture
def no_compiler(tmp_path: Path) -> str:
    """A PATH that has what the suite's wrapper needs, and no compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "python3", "dirname"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    return str(folder)


def test_every_program_a_check_asks_for_can_be_compiled_in_advance(tmp_path: Path) -> None:
    done = suite("--compile", str(tmp_path / "programs"))
    assert done.returncode == 0, done.stderr
    made = {path.name for path in (tmp_path / "programs").iterdir()}
    assert made == {path.stem for path in SOURCES.glob("*.c")}
    assert {Path(source).stem for source in asked_for()} <= made
    for path in (tmp_path / "programs").iterdir():
        assert path.stat().st_mode & 0o777 == 0o755


def test_without_a_compiler_it_says_so_before_it_attacks(no_compiler: str) -> None:
    done = suite("sh", path=no_compiler)
    assert done.returncode == 2
    assert "gcc" in done.stderr and "--programs" in done.stderr


def test_with_programs_it_asks_for_no_compiler(no_compiler: str, tmp_path: Path) -> None:
    """It goes on: this box is one that fails at everything."""
    box = tmp_path / "box"
    box.write_text("#!/bin/sh\nexit 3\n")
    box.chmod(0o755)
    done = suite(str(box), "--programs", str(tmp_path), "--accel", "tcg", path=no_compiler)
    assert done.returncode == 1
    assert "suite.ready" in done.stdout and "does not answer" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--programs", "/nowhere", "sh"], "no folder /nowhere"),
        (["/nowhere/box"], "no command /nowhere/box"),
        ([], "name the box command"),
        (["sh", "--json", "/nowhere/report.json"], "there is no folder /nowhere"),
        (["sh", "--json", "/"], "/ is a folder"),
        (["sh", "--only", "jial"], "no such check: jial"),
        (["sh", "strict", "badbackend"], "invalid choice: 'badbackend'"),
        (["sh", "--scale", "much"], "invalid float value: 'much'"),
        (["--compile", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_a_wrong_call_is_named(words: list[str], said: str) -> None:
    done = suite(*words)
    assert done.returncode == 2
    assert said in done.stderr
    no_traceback(done.stderr)
