"""The data disk of a sandbox: the only thing that persists, a chain of layers under `disks/NAME/`.

Its files belong to whoever runs the controller and are nobody else's to read; a VMM only ever gets
descriptors, so its UID owns nothing on the host. No host tool reads a disk a guest has had: growing
extends a raw file or is left to the VMM, the guest agent resizes the file system.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import tomllib
from pathlib import Path

from reconcilers import chain, layers
from reconcilers.chain import BASE, Chain, Layer
from reconcilers.facts import MIB, Disk
from reconcilers.layers import CHAIN, FROZEN_MODE, TOP_MODE
from reconcilers.layers import sync as _sync
from reconcilers.smallfile import read_small
from specs.errors import HostError

__all__ = ["BASE", "CHAIN"]


def observe(folder: Path) -> Disk | None:
    """The disk in `folder`, None when there is none. Raises HostError when the chain cannot be
    understood or a layer is missing.
    """
    read = layers.read(folder)
    if read is None:
        return None
    found, whole = read
    *frozen, top = found.layers
    beneath = tuple(folder / layer.file for layer in frozen)
    guarded = [_is_private(path, FROZEN_MODE) for path in beneath]
    facts = _facts(folder / top.file)
    private = whole and all(guarded) and _is_private(folder / top.file, TOP_MODE)
    size = found.size_mib * MIB if found.size_mib else facts.st_size
    return Disk(
        path=folder / top.file,
        format=top.format,
        size=size,
        uid=facts.st_uid,
        gid=facts.st_gid,
        mode=stat.S_IMODE(facts.st_mode),
        private=private,
        beneath=beneath,
        made=top.size_mib * MIB if top.size_mib else size,
    )


def _facts(path: Path) -> os.stat_result:
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        raise HostError(
            f"{path}, a layer of its disk, is gone", fix="put it back, or delete the sandbox"
        ) from None
    if not stat.S_ISREG(facts.st_mode):
        raise HostError(f"{path} is not a regular file")
    return facts


def _is_private(path: Path, mode: int) -> bool:
    facts = _facts(path)
    seen = (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode))
    return seen == (os.geteuid(), os.getegid(), mode)


def belongs_to(folder: Path) -> str:
    """The sandbox whose disk a folder says it is; empty for a copy, or what is no disk of ours."""
    try:
        return str(tomllib.loads(read_small(folder / CHAIN, layers.CHAIN_MAX).decode())["sandbox"])
    except (OSError, HostError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def create(folder: Path, size_mib: int) -> None:
    """Make an empty ext4 disk of `size_mib` MiB (sparse), all or nothing. Raises HostError,
    CommandError, OSError.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as scratch:
        ready = Path(scratch) / "disk"
        ready.mkdir(mode=0o700)
        layers.make_base(ready / BASE, size_mib)
        layers.write(ready, Chain(folder.name, (Layer(BASE),)))
        ready.rename(folder)
    _sync(folder.parent)


def grow(disk: Disk, size_mib: int) -> None:
    """Give the disk `size_mib` MiB; never shrinks. The guest agent resizes the file system inside.

    A raw file is extended. Of an overlay only chain.toml says so: the VMM in its jail, which reads
    the file anyway, is told when it runs.
    """
    if disk.format != "raw":
        read = layers.read(disk.path.parent)
        if read is not None:
            layers.write(disk.path.parent, chain.grown(read[0], size_mib))
        return
    descriptor = os.open(disk.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size < size_mib * MIB:
            os.ftruncate(descriptor, size_mib * MIB)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mend(disk: Disk) -> None:
    """Give the files back to their owner, with their modes, and write down a lost chain again."""
    for path in disk.beneath:
        layers.set_mode(path, FROZEN_MODE)
    layers.set_mode(disk.path, TOP_MODE)
    folder = disk.path.parent
    read = layers.read(folder)
    if read is not None and not read[1]:
        layers.write(folder, read[0])


def open_for_vmm(disk: Disk, written: Path | None = None) -> tuple[int, ...]:
    """Descriptors of its layers to hand to the VMM, bottom first; only the top is writable, or
    only `written`.
    """
    opened: list[int] = []
    try:
        for path in (*disk.beneath, disk.path):
            access = os.O_RDWR if path == (written or disk.path) else os.O_RDONLY
            opened.append(os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW))
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return tuple(opened)


def set_aside(folder: Path, deleted: Path, moment: str) -> Path:
    """Move a deleted sandbox's disk to `deleted/NAME-MOMENT` and return that path."""
    deleted.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = deleted / f"{folder.name}-{moment}"
    attempt = 1
    while target.exists():
        attempt += 1
        target = deleted / f"{folder.name}-{moment}.{attempt}"
    folder.rename(target)
    _sync(deleted)
    _sync(folder.parent)
    return target


def erase(folder: Path) -> None:
    """Remove a disk for good. The rename first, so that a crash never leaves half a disk under a
    live name.
    """
    doomed = folder.with_name(f".erase-{folder.name}-{os.getpid()}")
    folder.rename(doomed)
    shutil.rmtree(doomed)
    _sync(folder.parent)


def sweep(disks: Path) -> None:
    """Finish what a killed controller had begun: half-made and half-erased disks go, and layers
    that no chain names, or not yet.
    """
    for leftover in [*disks.glob(".new-*"), *disks.glob(".erase-*")]:
        shutil.rmtree(leftover, ignore_errors=True)
    for folder in disks.glob("[!.]*"):
        if belongs_to(folder) == folder.name:
            layers.tidy(folder)
