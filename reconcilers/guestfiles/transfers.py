"""The files in which archives pass between whoever gives or wants a directory and the controller.

Each is `$BOX_HOME/transfers/ID`, mode 0600, and is there for one command. Whoever uses one holds a
lock on it, so one without a lock was left by a process that was killed, and is removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from specs.errors import HostError, UsageError

ID = re.compile(r"[0-9a-f]{16}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def new(folder: Path) -> Iterator[tuple[str, int]]:
    """An empty file for one transfer: its ID and a descriptor. It is gone afterwards. Raises
    HostError, OSError.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    at = _opened(folder)
    try:
        _hand_over(at, folder)
        _sweep(at)  # what was opened: root may be in the home of somebody who changes it
        owner = os.fstat(at)
        while True:
            name = secrets.token_hex(8)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=at)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:  # else it was swept before it was locked
                break
            os.close(descriptor)
        try:
            if owner.st_uid != os.geteuid():  # root, who uses the home of somebody else
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            yield name, descriptor
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=at)
            os.close(descriptor)
    finally:
        os.close(at)


@contextlib.contextmanager
def existing(folder: Path, name: str) -> Iterator[int]:
    """A descriptor of a transfer that somebody else began. Raises UsageError when there is none."""
    if not ID.fullmatch(name):
        raise UsageError(
            "transfer: 16 hexadecimal digits are expected", fix=f"make and lock a file in {folder}"
        )
    try:
        descriptor = os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"there is no transfer {name}: {error.strerror}", fix=f"make and lock it in {folder}"
        ) from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise UsageError(f"the transfer {name} is no file of ours")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # it is never waited for here
        except BlockingIOError:
            raise UsageError(
                f"the transfer {name} is locked for somebody alone", fix="lock it shared"
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what nobody uses any more. A folder that cannot be read keeps nobody from anything
    else: whoever needs it is told by `new`. A link in its place is not followed.
    """
    with contextlib.suppress(OSError):
        at = os.open(folder, _FOLDER)
        try:
            _sweep(at)
        finally:
            os.close(at)


def _sweep(at: int) -> None:
    for name in filter(ID.fullmatch, os.listdir(at)):
        with contextlib.suppress(OSError):  # in use, or gone
            descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=at)
            finally:
                os.close(descriptor)


def _hand_over(at: int, folder: Path) -> None:
    """To the owner of the home, where root has just made the folder in that of somebody else: their
    controller could not use it, nor they themselves. Raises OSError.
    """
    home = os.stat(folder.parent)
    is_ours = os.fstat(at).st_uid == os.geteuid() != home.st_uid
    if is_ours and not os.listdir(at):  # whatever stands there by now, it gives away nothing
        os.fchown(at, home.st_uid, home.st_gid)


def _opened(folder: Path) -> int:
    at = os.open(folder, _FOLDER)
    facts = os.fstat(at)
    if facts.st_uid not in (os.geteuid(), os.stat(folder.parent).st_uid) or facts.st_mode & 0o022:
        os.close(at)
        raise HostError("others may write there", where=str(folder), fix=f"chmod 700 {folder}")
    return at
