"""The C programs of the attacks, as static programs: compiled here, or elsewhere and brought along.

Each C file of this folder is one program with no flags of its own, so that all of them can be
compiled in advance, for a machine without a compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .home import BoxError

HERE = Path(__file__).parent
COMMAND = ("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread")
COMPILE_SECONDS = 120
NO_COMPILER = "cc is not installed\n  fix: apt-get install gcc libc6-dev, or --programs DIR"


def compile_program(source: str, folder: Path, seconds: float = COMPILE_SECONDS) -> Path:
    """Compile the file `source` of this folder to `folder`/STEM, for everybody to run.

    Raises BoxError with what the compiler said.
    """
    if shutil.which(COMMAND[0]) is None:
        raise BoxError(NO_COMPILER)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    target = folder / Path(source).stem
    command = [*COMMAND, "-o", str(target), str(HERE / source)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise BoxError(f"compiling {source} took longer than {seconds:g} s") from None
    if done.returncode != 0:
        raise BoxError(f"cc failed: {done.stderr.decode(errors='replace')[-800:]}")
    target.chmod(0o755)
    return target


def compile_all(folder: Path) -> list[Path]:
    """Every program an attack may ask for. Raises BoxError."""
    return [compile_program(source.name, folder) for source in sorted(HERE.glob("*.c"))]


def ready_made(source: str, folder: Path) -> Path:
    """The program of `source` that `compile_all` put into `folder`. Raises BoxError without it."""
    found = folder / Path(source).stem
    if not os.access(found, os.X_OK):
        raise BoxError(f"{folder} holds no program {found.name}; make it with --compile {folder}")
    return found
