"""The places of the host that no mount may lead to, and whether a directory is, holds or is in one.

By device and inode, looked up anew for every decision. It fails closed: a place that cannot be
looked at, and is not simply out of reach, raises. It must not know what a mount is.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from reconcilers.hostpath import Identity, ancestors, opened_directory
from reconcilers.layout import Layout
from specs.config import Config
from specs.errors import HostError

Place = tuple[str, str]
"""What it is, and its path."""

_CACHE = "/var/cache/box"
_RUNTIME = "/run/box"
_KERNEL_FILES = ("/proc", "/sys", "/dev")
_OUT_OF_REACH = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)


def forbidden_places(layout: Layout, config: Config, claims: Path) -> tuple[Place, ...]:
    """What no guest may see, whoever asks for it; a path that is not there yet counts as well.

    `claims` is the folder of the registry of identities.
    """
    found = [(f"{path} of the host", path) for path in _KERNEL_FILES]
    found += [
        ("the home of box", str(layout.home)),
        ("the watched folder", os.path.realpath(layout.boxes)),
        ("the policy", os.path.realpath(layout.policy)),
        # under other names, too, should one of them be mounted elsewhere
        ("the data disks", os.path.realpath(layout.all_disks)),
        ("the images", os.path.realpath(layout.images)),
        ("what builds left", os.path.realpath(layout.builds)),
        ("the records of the controller", os.path.realpath(layout.state)),
        ("the guest kernels", os.path.realpath(layout.kernels)),
        ("the guest kernels", _CACHE),
        ("the runtime directory", str(layout.runtime)),
        ("the runtime directories", str(layout.runtime.parent)),
        ("the runtime directories", _RUNTIME),
        ("the registry of identities", str(claims)),
    ]
    for named in (config.kernel, config.modules):
        if named is not None:
            found.append(("the guest kernel", os.path.realpath(os.path.expanduser(str(named)))))
    return tuple(found)


def program_places() -> tuple[Place, ...]:
    """What no guest may write: the code that this process runs, which is run again at each start.

    Of the system's own Python the folder of the packages is enough; nobody shares /usr writable
    and means well.
    """
    found = [("the program of box", str(Path(__file__).resolve().parents[1]))]
    if sys.prefix != sys.base_prefix:
        found.append(("the Python environment of box", os.path.realpath(sys.prefix)))
    return tuple(found)


def out_of_reach(error: OSError) -> bool:
    """Whether the path leads nowhere we could go, and not that looking was impossible just now."""
    return error.errno in _OUT_OF_REACH


class Places:
    """Their identities and those of everything above them, looked up once. Raises HostError."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._within: dict[Identity, str] = {}
        self._above: dict[Identity, str] = {}
        for what, path in places:
            try:
                self._add(what, path)
            except OSError as error:
                why = f"{what} cannot be looked at, so no mount can be judged: {error.strerror}"
                raise HostError(why, where=path) from error

    def _add(self, what: str, path: str) -> None:
        """A path that is not there, or out of reach: whatever holds it counts."""
        there = path
        while True:
            try:
                with opened_directory(there) as found:
                    chain = ancestors(found.descriptor)
                break
            except OSError as error:
                if not out_of_reach(error) or there == "/":
                    raise
                there = os.path.dirname(there)
        if there == path:
            self._within.setdefault(chain[0], what)
        for identity in chain:
            self._above.setdefault(identity, what)

    def why_not(self, chain: Sequence[Identity]) -> str:
        """What is wrong with a directory, given with everything above it; empty when nothing is."""
        if why := self.why_not_in(chain):
            return why
        if (what := self._above.get(chain[0])) is not None:
            return f"it holds {what}"
        return ""

    def why_not_in(self, chain: Sequence[Identity]) -> str:
        """What is wrong with a single file in a directory; empty when nothing is."""
        for identity in chain:
            if (what := self._within.get(identity)) is not None:
                return f"it is, or lies in, {what}"
        return ""
