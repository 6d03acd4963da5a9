"""The agent's code before a directory of the host, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agent.guest import Guest, compiled


@pytest.fixture(scope="session")
def transfer_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("transfer") / "transfer_driver")


@pytest.fixture
def guest(transfer_driver: Path, tmp_path: Path) -> Guest:
    return Guest(transfer_driver, tmp_path)
