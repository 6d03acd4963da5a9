"""The lock of all controllers: one at a time, and who waits too long is told for what."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from reconcilers import hostlock
from specs.errors import HostError


def test_one_at_a_time_and_free_again_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hostlock.held(path, 1), pytest.raises(HostError) as caught, hostlock.held(path, 0.05):
        pass
    assert str(path) in str(caught.value) and f"fuser -v {path}" in caught.value.fix
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = len(os.listdir("/proc/self/fd"))
    with hostlock.held(path, 0):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), hostlock.held(tmp_path / "lock", 0):
        pass
    assert not (tmp_path / "elsewhere").exists()
