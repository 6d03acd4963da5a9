"""The watched folder of a test, and what looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.controller.scanning import Scanner, record_opens


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    folder = tmp_path / "boxes"
    folder.mkdir()
    return folder


@pytest.fixture
def look(boxes: Path) -> Scanner:
    return Scanner(boxes)


@pytest.fixture
def opened_names(boxes: Path) -> Iterator[list[str]]:
    """Every name in the folder that anybody opens, as inotify reports it."""
    with record_opens(boxes) as seen:
        yield seen
