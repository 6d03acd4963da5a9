"""What helps when newuidmap refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reconcilers.confinement import idmaps

PROGRAM = shutil.which("newuidmap")


@pytest.mark.skipif(PROGRAM is None, reason="uidmap is not installed")
def test_a_program_without_its_power_is_told_from_a_line_that_is_missing(tmp_path: Path) -> None:
    assert PROGRAM is not None
    assert idmaps._has_power(PROGRAM)
    said = idmaps._fix("newuidmap", "/etc/subuid", ((0, 196_607, 1),))
    assert said == "/etc/subuid must give this user what of 196607-196607 is not his own"
    copy = tmp_path / "newuidmap"
    shutil.copyfile(PROGRAM, copy)
    copy.chmod(0o755)
    assert not idmaps._has_power(str(copy))
