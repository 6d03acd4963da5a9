"""The directory that an export becomes: all of it at once, or nothing.

It is built beside its place under a name of its own, and takes its place when it is whole. What a
killed export left there is removed by the next one that is made in the same place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from reconcilers.confinement.syscalls import renameat2_noreplace
from reconcilers.guestfiles import beneath
from specs.errors import Conflict, UsageError

LEFTOVER = re.compile(rb"\.box-export-[0-9a-f]{8}")
FIX = "name a directory that does not exist yet, or an empty one"


class Target:
    """A new directory, or an empty one that exists; a link to one is one. It is in none of the
    directories of `apart`. Raises UsageError.
    """

    def __init__(self, path: Path, apart: Iterable[Path] = ()) -> None:
        self.path = Path(os.path.realpath(path))
        self._existed = check(self.path)
        for each in apart:
            if _is_below(self.path, each):
                raise UsageError(
                    f"is in {each}, where box keeps what it goes by, and a guest has no say",
                    where=str(self.path),
                    fix="name a directory elsewhere",
                )

    @contextlib.contextmanager
    def building(self) -> Iterator[int]:
        """The descriptor of an empty directory to fill. It is in its place when the block ends, and
        removed if the block raises. Raises UsageError, OSError, Conflict.
        """
        parent = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sweep(parent)
            name, descriptor = self._begin(parent)
            try:
                yield descriptor
                os.fchmod(descriptor, self._mode())
                self._place(parent, name)
            except BaseException:
                beneath.remove_tree(parent, name)
                raise
            finally:
                os.close(descriptor)
        finally:
            os.close(parent)

    def _begin(self, parent: int) -> tuple[bytes, int]:
        try:
            return _begun(parent)
        except OSError as error:
            raise UsageError(
                f"no directory can be made in {self.path.parent}: {error.strerror}",
                where=str(self.path),
                fix="name a directory in a place where you may write",
            ) from error

    def _mode(self) -> int:
        if self._existed:
            return stat.S_IMODE(self.path.stat().st_mode)
        umask = os.umask(0o077)
        os.umask(umask)
        return 0o777 & ~umask

    def _place(self, parent: int, name: bytes) -> None:
        final = self.path.name
        try:
            if self._existed:  # rename(2) replaces an empty directory, and no other
                os.rename(name, final, src_dir_fd=parent, dst_dir_fd=parent)
            else:
                renameat2_noreplace(parent, os.fsdecode(name), parent, final)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY):
                raise
            why = "was changed meanwhile"
            if error.errno == errno.EBUSY:
                why = "is a mount point, which cannot be replaced"
            raise Conflict(why, where=str(self.path), fix=FIX) from error


def check(path: Path) -> bool:
    """Whether it exists. Raises UsageError when it can be no target."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UsageError(
                "the directory it would be in is missing",
                where=str(path),
                fix=f"mkdir -p {path.parent}",
            ) from None
        return False
    if not stat.S_ISDIR(facts.st_mode):
        raise UsageError("is no directory", where=str(path), fix=FIX)
    if any(path.iterdir()):
        raise UsageError("is not empty", where=str(path), fix=FIX)
    if path.is_mount():
        raise UsageError(
            "is a mount point, which cannot be replaced", where=str(path), fix=f"use {path}/data"
        )
    return True


def _is_below(path: Path, directory: Path) -> bool:
    """Whether a directory is this one, or in it, by whatever name; the last one need not exist."""
    with contextlib.suppress(FileNotFoundError):
        facts = directory.stat()
        for each in (path, *path.parents):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(each.stat(), facts):
                    return True
    return False


def _begun(parent: int) -> tuple[bytes, int]:
    while True:
        name = b".box-export-" + secrets.token_hex(4).encode()
        descriptor = beneath.make_folder(parent, name)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # else it was swept before it was locked
            return name, descriptor
        os.close(descriptor)


def _sweep(parent: int) -> None:
    """Remove what exports that were killed left here: such a name, ours, and nobody's lock."""
    for name in filter(LEFTOVER.fullmatch, beneath.names_in(parent)):
        with contextlib.suppress(OSError):
            descriptor = beneath.open_folder(parent, name)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    beneath.remove_tree(parent, name)
            finally:
                os.close(descriptor)
