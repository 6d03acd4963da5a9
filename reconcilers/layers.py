"""The files of a disk's chain in its folder: read, made, frozen and removed.

A folder needs no other: a fork has links of its own to the layers it shares, so the file system
counts who needs them, and a folder that was set aside can be kept, moved and brought back alone.
The content of a layer is never read here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from reconcilers import chain, chainsteps, chaintext, qcow2
from reconcilers.chain import Chain, Layer
from reconcilers.chainsteps import Commit, FileStep, Freeze, Make, Remove
from reconcilers.facts import MIB
from reconcilers.process import run
from reconcilers.smallfile import read_small
from specs.errors import HostError

CHAIN = "chain.toml"
# Bytes of it. Snapshots, forks and what they began with each name up to 32 layers; all of that can
# come to a quarter of it.
CHAIN_MAX = 1 << 20
TOP_MODE, FROZEN_MODE = 0o600, 0o400
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def new_file(layer_format: str) -> str:
    """A name for a new layer that no folder has."""
    return f"{secrets.token_hex(8)}.{layer_format}"


def present(folder: Path) -> dict[str, bool]:
    """The layer files in `folder`, and whether the mode of each lets it be written."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if chain.is_layer_file(entry.name):
                found[entry.name] = bool(entry.stat(follow_symlinks=False).st_mode & 0o222)
    return found


def read(folder: Path) -> tuple[Chain, bool] | None:
    """(the chain, whether chain.toml says so); None without a disk. Raises HostError, OSError.

    A lost or garbled chain.toml is made up for where the folder's one layer leaves no doubt.
    """
    try:
        return chaintext.parse(read_small(folder / CHAIN, CHAIN_MAX).decode()), True
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        if not folder.exists():
            return None
        files = list(present(folder))
        if not files:
            return None
        if len(files) > 1 or not files[0].endswith(".raw"):
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise HostError(
                f"{folder / CHAIN} cannot be used ({why}), and its {len(files)} layers alone do "
                "not say which is on which",
                fix=f"put {folder / CHAIN} back from a backup; nothing was removed",
            ) from None
        return Chain(folder.name, (Layer(files[0]),)), False


def size_mib(folder: Path, found: Chain) -> int:
    """What the guest sees, or is about to, in MiB."""
    if found.size_mib:
        return found.size_mib
    return -(-os.lstat(folder / found.top.file).st_size // MIB)


def is_empty(folder: Path, top: Layer) -> bool:
    """Whether nothing was ever written to an overlay, so that its disk is what lies beneath."""
    length = qcow2.empty_length(top.size_mib * MIB)
    return top.format == "qcow2" and os.lstat(folder / top.file).st_size == length


def make_fork(parent: Path, folder: Path, new: Chain) -> None:
    """Make the folder of a fork, whose layers but the top are those of `parent`, all or nothing.

    Raises HostError, OSError.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as scratch:
        ready = Path(scratch) / "disk"
        ready.mkdir(mode=0o700)
        for layer in new.layers[:-1]:
            source = parent / layer.file
            set_mode(source, FROZEN_MODE)
            try:
                os.link(source, ready / layer.file, follow_symlinks=False)
            except OSError as error:
                raise HostError(
                    f"{source} cannot be shared with a fork: {error.strerror}",
                    fix=f"keep {parent} on the file system of {folder.parent}, one that has links",
                ) from error
        make_overlay(ready / new.top.file, new.top.size_mib)
        write(ready, new)
        ready.rename(folder)
    sync(folder.parent)


def write(folder: Path, new: Chain) -> None:
    """Replace chain.toml: whoever reads it, also after a power cut, sees the old or the new one.
    Raises HostError for one that could not be read again, OSError.
    """
    text = chaintext.render(new)
    if len(text.encode()) > CHAIN_MAX:
        raise HostError(
            f"what {folder / CHAIN} would have to hold is larger than {CHAIN_MAX} bytes",
            fix=f"box snapshots {new.sandbox} --delete LABEL",
        )
    temporary = folder / f".{CHAIN}.new"
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, _NEW_FILE, TOP_MODE)  # no link under this name is followed
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sync(folder)  # the layers it names, before the name that counts
        temporary.rename(folder / CHAIN)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(folder)


def change(folder: Path, old: Chain, new: Chain, *, base_mib: int = 0) -> None:
    """Make the disk in `folder` the one of `new`, whose new raw layer, if any, has `base_mib` MiB.
    No VMM may have it open.

    Raises HostError, CommandError or OSError, with nothing added to what chain.toml then says.
    """
    try:
        for step in chainsteps.steps_between(old, new, present(folder), base_mib):
            if isinstance(step, Commit):
                _settle(folder, step.chain.frozen)
            _do(folder, step)
    except BaseException:
        tidy(folder)
        raise


def tidy(folder: Path) -> None:
    """Finish what a killed controller had begun in the folder of a disk that can be read."""
    with contextlib.suppress(OSError, HostError):
        found = read(folder)
        if found is not None and found[1]:
            (folder / f".{CHAIN}.new").unlink(missing_ok=True)
            for step in chainsteps.tidied(found[0], present(folder)):
                _do(folder, step)


def make_base(path: Path, size: int) -> None:
    """An empty ext4 disk of `size` MiB, sparse, durable. Raises HostError, CommandError, OSError.

    mke2fs sees the file before a guest has had it, and never after.
    """
    descriptor = os.open(path, _NEW_FILE, TOP_MODE)
    try:
        os.ftruncate(descriptor, size * MIB)
    finally:
        os.close(descriptor)
    # The file is all holes, so tables need no zeroing now, nor by a guest thread after the first
    # mount.
    options = "lazy_itable_init=0,lazy_journal_init=0,assume_storage_prezeroed=1,root_owner=0:0"
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-L", "data", "-E", options] + [str(path)])
    sync(path)


def make_overlay(path: Path, size: int) -> None:
    """An overlay of `size` MiB that holds nothing, durable. Raises OSError."""
    with os.fdopen(os.open(path, _NEW_FILE, TOP_MODE), "r+b") as file:
        for offset, data in qcow2.empty(size * MIB):
            file.seek(offset)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def set_mode(path: Path, mode: int) -> None:
    """Give a layer to the controller's user alone. Raises OSError; follows no link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise HostError(f"{path} is not a regular file")
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def held_alone(path: Path) -> int:
    """Bytes of the host's disk that removing this layer would free: 0 where a fork has it, too."""
    facts = path.lstat()
    return facts.st_blocks * 512 if facts.st_nlink == 1 else 0


def sync(path: Path) -> None:
    """fsync a file or a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _settle(folder: Path, files: Iterable[str]) -> None:
    """What is about to be frozen has reached the disk: a snapshot is one also after a power cut."""
    for file in files:
        if (folder / file).lstat().st_mode & 0o222:
            sync(folder / file)


def _do(folder: Path, step: FileStep) -> None:
    match step:
        case Make(file, size) if file.endswith(".raw"):
            make_base(folder / file, size)
        case Make(file, size):
            make_overlay(folder / file, size)
        case Commit(new):
            write(folder, new)
        case Freeze(file):
            set_mode(folder / file, FROZEN_MODE)
        case Remove(file):
            (folder / file).unlink(missing_ok=True)
