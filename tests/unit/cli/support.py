"""Runs the real command line in a process of its own, against a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tracebacks import no_traceback

ROOT = Path(__file__).resolve().parents[3]
ARGV = (sys.executable, "-m", "controller.cli.main")
BARE = str(Path(sys.executable).resolve())
"""The interpreter without what a virtual environment adds."""


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    return {**kept, "BOX_HOME": str(home), "PYTHONPATH": str(ROOT), **more}


def box(
    home: Path,
    *arguments: str | bytes,
    stdin: bytes = b"",
    cwd: Path | None = None,
    timeout: float = 100,
    **env: str,
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*ARGV, *arguments],
        input=stdin,
        capture_output=True,
        env=environment(home, **env),
        cwd=cwd or home.parent,
        timeout=timeout,
        check=False,
    )


def text(done: subprocess.CompletedProcess[bytes]) -> str:
    """Both outputs; fails on a traceback, which no user may ever see."""
    shown = done.stdout.decode() + done.stderr.decode()
    no_traceback(shown)
    return shown
