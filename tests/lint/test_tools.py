"""The linters, each as one test, with the settings of pyproject.toml and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lint.tree import ROOT, project_files

BIN = Path(sys.executable).parent
pytestmark = pytest.mark.timeout(600)


def verdict(*argv: str | Path) -> str:
    """What a linter complains about; empty when it is content."""
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=580)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def passes(*argv: str | Path) -> None:
    complaint = verdict(*argv)
    if complaint:
        pytest.fail(complaint, pytrace=False)


def test_ruff_finds_no_fault() -> None:
    passes(BIN / "ruff", "check", "--quiet", ".")


def test_code_is_formatted_by_ruff() -> None:
    passes(BIN / "ruff", "format", "--check", "--quiet", ".")


def test_types_hold_under_mypy_strict() -> None:
    passes(BIN / "mypy")


def test_imports_go_down_only() -> None:
    passes(BIN / "lint-imports")


def test_shell_scripts_pass_shellcheck() -> None:
    scripts = [path for path in project_files() if is_shell_script(path)]
    assert ROOT / "dev" in scripts
    passes("shellcheck", *scripts)


def is_shell_script(path: Path) -> bool:
    if path.suffix == ".sh":
        return True
    with path.open("rb") as file:
        first = file.readline(64)
    return first.startswith(b"#!") and first.split()[-1].rsplit(b"/")[-1] in (b"sh", b"bash")
