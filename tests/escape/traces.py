"""What a run of the escape suite could leave on this host, looked for by the names of its homes.

Every home of a run has its folder under one place, and an instance of its own in the names of
whatever the product makes.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from reconcilers.confinement.identity import IdentityRegistry
from specs.names import is_interface_of


class Traces:
    """Follows a run whose temporary files are below `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.instances: set[str] = set()

    def look(self) -> None:
        """Learn the instances of the homes that exist now; to be called while the suite runs."""
        for pattern in ("*/home/instance", "*/*/home/instance"):
            with contextlib.suppress(OSError):  # it comes and goes meanwhile
                for path in self.place.glob(pattern):
                    self.instances.add(path.read_text().strip())
        self.instances.discard("")

    def vmms(self) -> list[int]:
        """Processes that bear the name of a sandbox of these homes."""
        markers = [f"box:{instance}:".encode() for instance in self.instances]
        return [pid for pid, words in _commands() if any(m in words for m in markers)]

    def left(self) -> list[str]:
        """Everything of the run that is still there, in words."""
        found = [f"the folder {path}" for path in self.place.iterdir()]
        needles = [str(self.place).encode(), *(each.encode() for each in self.instances)]
        found += [
            f"process {pid}: {words[:200]!r}"
            for pid, words in _commands()
            if any(needle in words for needle in needles)
        ]
        for instance in self.instances:
            found += [f"the control group {path}" for path in _groups(instance)]
            for folder in (Path("/run/box"), Path("/run/netns")):
                if folder.is_dir():
                    found += [
                        f"{path}"
                        for path in folder.iterdir()
                        if path.name == instance or is_interface_of(path.name, instance)
                    ]
            if claims := IdentityRegistry().claimed(instance):
                found.append(f"the identities {claims}")
        mounts = Path("/proc/self/mounts").read_bytes()
        return found + [f"a mount with {n!r}" for n in needles if n in mounts]


def _commands() -> list[tuple[int, bytes]]:
    """Command line and environment of every process that is no zombie."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                found.append((int(entry.name), words))
    return found


def _groups(instance: str) -> list[Path]:
    """Of an ordinary user, they lie deeper; those are followed by the tests of users."""
    top = Path("/sys/fs/cgroup")
    return [path for each in (top, *top.iterdir()) if (path := each / "box" / instance).is_dir()]
