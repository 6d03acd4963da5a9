"""The files between controller and VMM: read against what they must be, and put back.

Whoever could write to the folder, open a socket or read the token in the launch record would speak
to the VMM in the controller's place. It must not follow a link, nor make what is missing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reconcilers.layout import Layout
from reconcilers.sockets import SOCKET_MODE
from specs.reading import Mend, Reading

LAYER = "sockets"
FOLDER_MODE, RECORD_MODE = 0o700, 0o600


def read_files(layout: Layout, name: str) -> Iterator[Reading]:
    """Type, owner and mode of a running sandbox's folder, launch record and sockets."""
    folder = layout.sandbox_runtime(name)
    yield _reading(folder, "folder", stat.S_ISDIR, FOLDER_MODE)
    yield _reading(layout.launch_record(name), "launch.json", stat.S_ISREG, RECORD_MODE)
    for path in (
        layout.qmp_socket(name),
        layout.console_socket(name),
        layout.agent_socket(name),
    ):
        yield _reading(path, path.name, stat.S_ISSOCK, SOCKET_MODE)


def mend_files(readings: Sequence[Reading]) -> None:
    """Owner and mode back to what they must be. Raises OSError."""
    for reading in readings:
        # through a descriptor: others may have had the folder, and put a link in its place
        descriptor = os.open(reading.source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
                itself = f"/proc/self/fd/{descriptor}"
                os.chown(itself, os.geteuid(), os.getegid())
                os.chmod(itself, int(reading.want.rpartition(" ")[2], 8))
        finally:
            os.close(descriptor)


def _reading(path: Path, item: str, kind: Callable[[int], bool], mode: int) -> Reading:
    want = f"{os.geteuid()}:{os.getegid()} {mode:04o}"
    mend: Mend = "in place"
    try:
        facts = path.lstat()
        got = f"{facts.st_uid}:{facts.st_gid} {stat.S_IMODE(facts.st_mode):04o}"
        if not kind(facts.st_mode):
            got, mend = "not of its kind", "replace"
    except FileNotFoundError:
        # Only a new VMM listens under this name again.
        got, mend = "missing", "replace"
    return Reading(LAYER, item, want, got, got == want, str(path), "live", mend)
