"""The data disk of a sandbox: the only thing that persists, a chain of layers under `disks/NAME/`.

The file belongs to whoever runs the controller, mode 0600; a VMM only ever gets a descriptor, so
its UID owns nothing on the host. No host tool reads a disk a guest has had: growing extends the
file, the guest agent resizes the file system.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import tomllib
from pathlib import Path

import tomli_w

from reconcilers.facts import MIB, Disk
from reconcilers.process import run
from reconcilers.smallfile import read_small
from specs.errors import HostError

CHAIN = "chain.toml"
BASE = "base.raw"
FILE_MODE = 0o600


def observe(folder: Path) -> Disk | None:
    """The disk in `folder`, None when there is none. Raises HostError when the chain cannot be
    understood.
    """
    try:
        chain = tomllib.loads(read_small(folder / CHAIN).decode())
        layer = chain["layer"][-1]
        name, layer_format = str(layer["file"]), str(layer["format"])
        whole = True
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOENT:
            raise
        # A chain has one layer for now, so what a lost or garbled one must say is known.
        if not (folder / BASE).exists():
            return None
        name, layer_format, whole = BASE, "raw", False
    if "/" in name or "\0" in name or name.startswith("."):
        raise HostError(f"{folder / CHAIN} names a layer outside its folder: {name!r}")
    facts = os.lstat(folder / name)
    if not stat.S_ISREG(facts.st_mode):
        raise HostError(f"{folder / name} is not a regular file")
    uid, gid, mode = facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)
    private = whole and (uid, gid, mode) == (os.geteuid(), os.getegid(), FILE_MODE)
    return Disk(folder / name, layer_format, facts.st_size, uid, gid, mode, private)


def belongs_to(folder: Path) -> str:
    """The sandbox whose disk a folder says it is; empty for a copy, or what is no disk of ours."""
    try:
        return str(tomllib.loads(read_small(folder / CHAIN).decode())["sandbox"])
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
        target = ready / BASE
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.ftruncate(descriptor, size_mib * MIB)
        finally:
            os.close(descriptor)
        # The file is all holes, so tables need no zeroing now, nor by a guest thread after the
        # first mount.
        run(
            ["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-L", "data"]
            + [
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0,assume_storage_prezeroed=1,root_owner=0:0",
            ]
            + [str(target)]
        )
        _write_chain(ready, folder.name)
        _sync(target)
        _sync(ready)
        ready.rename(folder)
    _sync(folder.parent)


def grow(disk: Disk, size_mib: int) -> None:
    """Extend the file to `size_mib` MiB; never shrinks. The guest agent resizes the file system
    inside.
    """
    descriptor = os.open(disk.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size < size_mib * MIB:
            os.ftruncate(descriptor, size_mib * MIB)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mend(disk: Disk) -> None:
    """Give the file back to its owner, mode 0600, and write down its chain again."""
    descriptor = os.open(disk.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, FILE_MODE)
    finally:
        os.close(descriptor)
    _write_chain(disk.path.parent)


def open_for_vmm(disk: Disk) -> int:
    """A read-write descriptor to hand to the VMM."""
    return os.open(disk.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


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
    """Finish what a killed controller had begun: half-made and half-erased disks go."""
    for leftover in [*disks.glob(".new-*"), *disks.glob(".erase-*")]:
        shutil.rmtree(leftover, ignore_errors=True)


def _write_chain(folder: Path, sandbox: str = "") -> None:
    chain = {"sandbox": sandbox or folder.name, "layer": [{"file": BASE, "format": "raw"}]}
    temporary = folder / f".{CHAIN}.new"
    temporary.unlink(missing_ok=True)
    with open(temporary, "x") as file:  # a new file: no link under this name is written through
        file.write(tomli_w.dumps(chain))
    _sync(temporary)
    temporary.rename(folder / CHAIN)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
