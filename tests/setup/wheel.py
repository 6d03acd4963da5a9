"""Builds the wheel of this tree, as `./dev install` would, from the files a clone would hold.

Nothing is downloaded: the build backend is the one of the environment that runs the tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.lint.tree import ROOT, project_files

BUILD_SECONDS = 300


def build_wheel(folder: Path) -> Path:
    """The wheel, in `folder`. Raises CalledProcessError."""
    source = folder / "src"
    for path in project_files():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        + ["--no-build-isolation", "--wheel-dir", str(folder), str(source)],
        check=True,
        timeout=BUILD_SECONDS,
    )
    shutil.rmtree(source)
    (made,) = folder.glob("*.whl")
    return made
