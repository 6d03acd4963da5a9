"""Programs of the host that tests of disks call, and the mark of those that cannot do without."""

from __future__ import annotations

import os
import shutil

import pytest

PATH = f"{os.environ['PATH']}:/usr/sbin"  # which is not in an ordinary user's
needs_mke2fs = pytest.mark.skipif(
    not shutil.which("mke2fs", path=PATH), reason="e2fsprogs is missing"
)
