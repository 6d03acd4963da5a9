"""Writes a tree as a squashfs file, by the tool that is well kept and sees nothing but our tar."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from reconcilers.images.progress import Progress
from reconcilers.images.tarwrite import file_bytes, require_ids, write_tree
from reconcilers.images.tree import Tree
from reconcilers.process import GivenUp, feed
from specs.errors import HostError

SECONDS = 3600.0
_MAGIC = b"hsqs"
# sqfstar 4.5 gives the root folder to whoever runs it, whatever -root-uid says.
_AS_ROOT = ["unshare", "--user", "--map-root-user", "--"]
_PIPE_BYTES = 1 << 20


def write_squashfs(
    tree: Tree,
    source: Callable[[int], int],
    target: Path,
    stop: threading.Event,
    progress: Progress,
) -> None:
    """Make `target`, read-only for everybody, of `tree`; its files' bytes come from the descriptors
    that `source` gives. Raises BadImage, CommandError, HostError, OSError, GivenUp.
    """
    require_ids(tree)
    root = tree.root
    argv = _AS_ROOT if os.geteuid() != 0 else []
    argv = [*argv, "sqfstar", "-comp", "lz4", "-mkfs-time", "0", "-quiet", "-no-progress"]
    argv += ["-exit-on-error", "-root-mode", f"{root.mode:o}"]
    argv += ["-root-uid", str(root.uid), "-root-gid", str(root.gid), str(target)]

    total = file_bytes(tree)

    def check(written: int) -> None:
        if stop.is_set():
            raise GivenUp("the image is not wanted any more")
        progress.bytes(min(written, total), total)

    def write(out: IO[bytes]) -> int:
        _widen(out)
        return write_tree(tree, source, out, check)

    inodes = feed(argv, write, timeout=SECONDS)
    with open(target, "rb") as file:
        magic, found = struct.unpack("<4sI", file.read(8))
    if (magic, found) != (_MAGIC, inodes):
        raise HostError(f"sqfstar made an image of {found} files out of {inodes}")
    os.chmod(target, 0o444)


def _widen(pipe: IO[bytes]) -> None:
    try:
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except PermissionError:
        return  # the user's pipes take too much already: slower, and that is all
