"""Readings of what a VMM holds: its open descriptors and its environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconcilers.confinement import atlaunch
from reconcilers.confinement.procfds import Held
from specs.reading import Reading


def given_files(known: Mapping[tuple[str, str], Reading]) -> tuple[str, ...]:
    """The files and devices it was launched with, as `procfds` writes them, and "mount ID" of each
    mount of its root, where the launch recorded them."""
    recorded = known.get(atlaunch.FILES_KEY)
    mounts = known.get(atlaunch.MOUNT_IDS_KEY)
    files = recorded.want.split(", ") if recorded else []
    return (*files, *(f"mount {number}" for number in (mounts.want.split() if mounts else ())))


def readings_of(
    held: Held, proc: str, known: Mapping[tuple[str, str], Reading]
) -> Iterator[Reading]:
    """Regular files and devices against the launch's own; other kinds against what QEMU makes."""
    recorded = known.get(atlaunch.FILES_KEY)
    path = f"{proc}/fd"
    want = recorded.want if recorded else "recorded by the launch"
    got = want
    if held.foreign or recorded is None:
        got = f"{_listed(held.foreign)} from outside its root"
    yield Reading("descriptors", "files", want, got, got == want, path, "live", "replace")
    others = _listed(held.strange)
    yield Reading("descriptors", "of other kinds", "", others, not others, path, "live", "replace")
    got = f"{held.environment} bytes" if held.environment else ""
    path = f"{proc}/environ"
    yield Reading("environment", "variables", "", got, not got, path, "live", "replace")


def _listed(found: tuple[str, ...]) -> str:
    return ", ".join(found)
