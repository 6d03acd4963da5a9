"""Writes a loaded tree as the root of a guest: completed, as a squashfs file."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from reconcilers.images.guestneeds import CONTENTS, complete
from reconcilers.images.progress import Progress
from reconcilers.images.sources import Loaded
from reconcilers.images.squash import write_squashfs


def write_root(
    found: Loaded, target: Path, stop: threading.Event, progress: Progress
) -> tuple[str, ...]:
    """Write what was loaded to `target`, with what every guest needs (blocking); returns what was
    replaced for that, in words. Raises BadImage, CommandError, HostError, OSError, GivenUp.
    """
    ours = found.sources  # the number of the source that is none of the image's
    replaced = complete(found.tree, ours)
    progress.stage("writing the image")
    with tempfile.TemporaryFile(dir=target.parent.parent) as extra:
        extra.write(CONTENTS)
        extra.flush()
        write_squashfs(
            found.tree,
            lambda number: extra.fileno() if number == ours else found.source(number),
            target,
            stop,
            progress,
        )
    return replaced
