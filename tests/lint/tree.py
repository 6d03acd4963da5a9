"""The files a clone would hold, for the tests that read the source tree. It must not judge them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The rooms from the ground up, and the adversary, who may know none of them.
ROOMS = ("specs", "agent", "reconcilers", "controller")


@cache
def project_files() -> tuple[Path, ...]:
    """Tracked files and new ones that no .gitignore names, as absolute paths."""
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    paths = (ROOT / name for name in listing.split("\0") if name)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def python_files(*rooms: str) -> tuple[Path, ...]:
    """Python files below the given top folders; all of them when none is given."""
    found = (path for path in project_files() if path.suffix == ".py")
    return tuple(p for p in found if not rooms or p.relative_to(ROOT).parts[0] in rooms)
