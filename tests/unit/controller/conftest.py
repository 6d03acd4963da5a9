"""The watched folder of a test and what looks at it; a home of its own."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from controller.home import ensure_home
from reconcilers.layout import Layout
from tests.unit.cli.hostservice import HostService, serving
from tests.unit.controller.scanning import Opens, Scanner, record_opens


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    folder = tmp_path / "boxes"
    folder.mkdir()
    return folder


@pytest.fixture
def look(boxes: Path) -> Scanner:
    return Scanner(boxes)


@pytest.fixture
def opens(boxes: Path) -> Iterator[Opens]:
    """Every name in the folder that anybody opens, as inotify reports it."""
    with record_opens(boxes) as found:
        yield found


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    """A fresh home; root only. Its runtime directory goes with the test."""
    found = ensure_home(tmp_path / "home")
    yield found
    shutil.rmtree(found.runtime)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[tuple[HostService, Path]]:
    """An API whose commands are real processes of this host, and its socket."""
    path = tmp_path / "box.sock"
    async with serving(path) as service:
        yield service, path
