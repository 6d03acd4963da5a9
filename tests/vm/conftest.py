"""Homes with real controllers. A module shares one where its tests leave it as they found it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EVIDENCE
from tests.vm.harness import Home, home_with_controller


def _home() -> Iterator[Home]:
    with (
        tempfile.TemporaryDirectory(prefix="boxtest-") as tmp,
        home_with_controller(Path(tmp)) as home,
    ):
        EVIDENCE.watch(home.path, "home")
        try:
            yield home
        finally:
            EVIDENCE.forget(home.path)


@pytest.fixture(scope="module")
def shared_home() -> Iterator[Home]:
    """One controller for a module."""
    yield from _home()


@pytest.fixture
def home() -> Iterator[Home]:
    """A controller of this test alone."""
    yield from _home()
