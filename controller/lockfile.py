"""One controller per box home and per watched folder.

Two controllers on one folder would undo each other's work for ever. flock(2) is used because the
kernel drops it with the last descriptor, so a killed controller leaves nothing to clean up. The
locks must never be inherited: a VMM that kept one open would keep the next controller out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType

from controller import files
from specs.errors import BoxError, HostError


class AlreadyRunning(BoxError):
    """Another controller holds the lock; `pid` is None where its process cannot be seen."""

    code = "conflict"
    retry = False

    def __init__(self, message: str, *, pid: int | None, fix: str = "", where: str = "") -> None:
        super().__init__(message, fix=fix, where=where)
        self.pid = pid


class ControllerLock:
    """The lock of a home and, once `lock_folder` succeeded, of the folder it watches."""

    def __init__(self, descriptor: int) -> None:
        self._home = descriptor
        self._folder: int | None = None
        self._folder_identity: tuple[int, int] | None = None

    @classmethod
    def acquire(cls, path: Path) -> ControllerLock:
        """Lock the file `path` ($BOX_HOME/controller.lock); raises AlreadyRunning or HostError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise files.write_error(path, error) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise HostError("not a regular file", where=str(path), fix=f"remove it: rm {path}")
            take(descriptor, path, "this box home")
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise files.write_error(path, error) from error
        except BoxError:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def lock_folder(self, folder: Path) -> None:
        """Lock the watched folder itself; again after it was replaced. A missing one is no error.

        Raises AlreadyRunning when a controller of another home watches the same folder.
        """
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return  # the scan reports it
        try:
            facts = os.fstat(descriptor)
            identity = (facts.st_dev, facts.st_ino)
            if identity == self._folder_identity:
                os.close(descriptor)
                return
            take(descriptor, folder, "the watched folder")
        except BaseException:
            os.close(descriptor)
            raise
        if self._folder is not None:
            os.close(self._folder)
        self._folder = descriptor
        self._folder_identity = identity

    def keep(self, path: Path) -> None:
        """Lock `path` anew when its file was removed or replaced since. Raises AlreadyRunning when
        another controller has taken the place meanwhile.
        """
        ours = os.fstat(self._home)
        try:
            found = path.lstat()
        except FileNotFoundError:
            found = None
        if found is not None and (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
            return
        fresh = ControllerLock.acquire(path)
        self._home, fresh._home = fresh._home, self._home
        fresh.release()

    def release(self) -> None:
        for descriptor in (self._folder, self._home):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._folder = None
        self._folder_identity = None
        self._home = -1

    def __enter__(self) -> ControllerLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def holder(path: Path) -> int | None:
    """The process id of the controller that holds `path` now, or None. Takes nothing."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return locked_by(facts)


def take(descriptor: int, path: Path, what: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = locked_by(os.fstat(descriptor)) or written_pid(descriptor)
        who = f"process {pid}" if pid else "a process that cannot be seen from here"
        raise AlreadyRunning(
            f"another controller already runs on {what}: {who}",
            pid=pid,
            where=str(path),
            fix=f"use that one, or stop it first: kill {pid}" if pid else "stop it first",
        ) from None
    except OSError as error:
        raise HostError(
            f"cannot be locked: {os.strerror(error.errno or 0)}",
            where=str(path),
            fix="keep it on a local file system, which supports flock",
        ) from error


def locked_by(facts: os.stat_result) -> int | None:
    """The process that the kernel lists as holding a flock on this file."""
    # proc_locks(5): "1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF"; waiting ones have "->"
    # second.
    wanted = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == wanted:
                pid = int(fields[4])
                return pid if pid > 0 else None  # 0 or less: of another PID namespace
    return None


def written_pid(descriptor: int) -> int | None:
    """The process id that the holder wrote into its lock file; a folder holds none."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(os.pread(descriptor, 32, 0))
        return pid if pid > 0 else None
    return None
