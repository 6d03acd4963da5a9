"""Homes with real controllers. A module shares one where its tests leave it as they found it."""

from __future__ import annotations

import contextlib
import subprocess
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


@pytest.fixture
def small_home() -> Iterator[Home]:
    """A home on a file system of 24 MiB, less than a sandbox's disk may take."""
    with tempfile.TemporaryDirectory(prefix="boxtest-") as tmp:
        path = Path(tmp) / "home"
        path.mkdir(mode=0o700)
        options = "size=24m,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "boxtest", path], check=True)
        try:
            with contextlib.ExitStack() as stack:
                yield stack.enter_context(home_with_controller(Path(tmp)))
        finally:
            subprocess.run(["umount", "--lazy", path], check=True)
