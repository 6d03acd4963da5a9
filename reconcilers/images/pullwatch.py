"""How much a pull may bring, and how little it may get on with, while skopeo is at it.

What a registry sends is a stranger's: it may never end, drip, or unpack to any size. Each file is
bounded by skopeo's own limit; here are their sum, their number, and the least that must arrive.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from reconcilers.images.manifest import LAYERS_BYTES_MAX, LAYERS_MAX, too_large, too_many
from specs.errors import HostError

FILES_MAX = LAYERS_MAX + 33
"""The layers, and what skopeo keeps beside them: manifest, configuration, version, and what it is
just writing.
"""
STALL_SECONDS, STALL_BYTES = 300.0, 1 << 20
"""A pull that gets on by less than so many bytes in so many seconds is given up."""
_EACH = 4096  # bytes that an empty file counts for


class PullWatch:
    """Of one pull into `folder`. `stalls`: it comes from somebody who may drip."""

    def __init__(self, folder: Path, *, stalls: bool) -> None:
        self._folder, self._stalls = folder, stalls
        self._since, self._moved = time.monotonic(), 0

    def look(self, pid: int) -> None:
        """Called now and then with the PID of skopeo. Raises BadImage for what no image may be,
        HostError for a registry that does not get on.
        """
        self._bound()
        if self._stalls:
            self._require_progress(_moved(pid))

    def _bound(self) -> None:
        files = held = 0
        for folder in (self._folder, self._folder.parent):  # where it unpacks, and its TMPDIR
            try:
                with os.scandir(folder) as entries:
                    for each in entries:
                        facts = each.stat(follow_symlinks=False)
                        files += 1
                        held += max(facts.st_blocks * 512, _EACH)
            except FileNotFoundError:
                continue  # not there yet, or a file that was just renamed: looked at again soon
        if files > FILES_MAX:
            raise too_many(files)
        if held > LAYERS_BYTES_MAX:
            raise too_large()

    def _require_progress(self, moved: int) -> None:
        now = time.monotonic()
        if moved - self._moved >= STALL_BYTES:
            self._since, self._moved = now, moved
        elif now - self._since > STALL_SECONDS:
            raise HostError(
                f"the registry sends less than {STALL_BYTES >> 10} KiB in {STALL_SECONDS:g} s",
                fix="look at the registry and the way to it; it is tried again by itself",
            )


def _moved(pid: int) -> int:
    """Bytes that the process has read and written so far, 0 when it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return sum(int(line.partition(": ")[2]) for line in lines if line[1:].startswith("char"))
    except (OSError, ValueError):
        return 0
