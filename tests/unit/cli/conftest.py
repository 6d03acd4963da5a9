"""A home of its own for each test, with nothing left on the host afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.home import ensure_home
from reconcilers.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    """An existing, empty home."""
    made = ensure_home(tmp_path / "home")
    yield made
    shutil.rmtree(made.runtime, ignore_errors=True)
