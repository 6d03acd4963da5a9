"""What the fast path of the command line pays for importing the vocabulary."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SLOW = {"pydantic", "ruamel.yaml", "asyncio", "argparse", "inspect", "tomllib", "unicodedata"}
SLOWISH = {"dataclasses", "typing", "re", "enum", "hashlib"}


def imported_by(module: str) -> set[str]:
    """Names of all modules that a fresh interpreter without site holds after one import."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", program]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("module", ["specs.errors", "specs.names", "specs.text", "specs.filename"])
def test_exec_path_imports_nothing_slow(module: str) -> None:
    assert imported_by(module) & (SLOW | SLOWISH) == set()


@pytest.mark.parametrize("module", ["specs.conditions", "specs.drift", "specs.reading"])
def test_reading_commands_import_no_model_library(module: str) -> None:
    assert imported_by(module) & (SLOW - {"inspect"}) == set()
