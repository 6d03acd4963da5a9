"""Disks as they are or were, to be looked at by a machine that must not change them.

Their layers are opened for reading alone. What a guest's kernel wants to write all the same, its
journal above all, goes into a top of its own, which is thrown away.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from reconcilers import layers, qcow2
from reconcilers.chain import Chain, Layer
from reconcilers.facts import MIB, Disk
from reconcilers.guestfiles import transfers


@contextlib.contextmanager
def thrown_away(
    scratch: Path, folder: Path, holds: tuple[Layer, ...], size_mib: int
) -> Iterator[Disk]:
    """The disk of `size_mib` MiB that these layers in `folder` are, with a top in `scratch` that is
    gone afterwards. Raises HostError, OSError.
    """
    with transfers.new(scratch) as (name, descriptor):
        for offset, data in qcow2.empty(size_mib * MIB):
            os.pwrite(descriptor, data, offset)
        yield on_top(folder, holds, scratch / name, size_mib)


def on_top(folder: Path, holds: tuple[Layer, ...], top: Path, size_mib: int) -> Disk:
    """The disk that the overlay `top` makes of these layers in `folder`. Raises OSError."""
    facts = os.lstat(top)
    return Disk(
        path=top,
        format="qcow2",
        size=size_mib * MIB,
        uid=facts.st_uid,
        gid=facts.st_gid,
        mode=facts.st_mode & 0o7777,
        private=True,
        beneath=tuple(folder / layer.file for layer in holds),
        made=size_mib * MIB,
    )


def size_mib(folder: Path, holds: tuple[Layer, ...]) -> int:
    """What a guest saw of these layers, in MiB. Raises OSError."""
    top = holds[-1]
    return layers.size_mib(folder, Chain("", holds, top.size_mib))
