"""Reads `$BOX_HOME/policy.toml`. A file that cannot be understood is an error, never an open
ceiling.
"""

from __future__ import annotations

from pathlib import Path

from controller import files
from specs.ceiling import Ceiling, parse_ceiling
from specs.errors import BoxError

POLICY_MAX = 64 << 10  # bytes


def read_ceiling(path: Path) -> Ceiling | BoxError:
    """The ceiling, one that allows everything where there is no file, or what is wrong with it."""
    try:
        return parse_ceiling(files.read_bounded(path, POLICY_MAX), str(path))
    except FileNotFoundError:
        return Ceiling()
    except BoxError as error:
        return error
