"""What tests of the suite's own parts share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.vm.harness import ROOT


@pytest.fixture(name="escape")
def _escape(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of the suite, which is no package of ours."""
    monkeypatch.syspath_prepend(str(ROOT / "security"))
    return lambda name: importlib.import_module(f"escape.{name}")
