"""Which files the root of a jail holds for a given VMM binary: a plain list, worked out once.

The binary, the libraries its loader would map, the modules it opens later and its firmware. Nothing
is mounted here and nothing is opened for writing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RootFile:
    """One read-only bind. `host` has no symbolic link in it; `inside` is where the VMM looks."""

    host: str
    inside: str
    executable: bool


def root_files(binary: str, *, kvm: bool = False) -> tuple[RootFile, ...]:
    """The files for QEMU at the absolute path `binary`, cached by its device, inode and mtime.

    Raises ConfinementError(layer="root") when the loader cannot resolve a library.
    """
    raise NotImplementedError
