"""Compare-and-swap of one file in a folder that other programs write to as well.

Editors save by renaming a new file over the old one, or by writing into it; neither asks for a
lock. So the new file is exchanged with the old one in one step (renameat2) while leases (fcntl(2),
"Leases") show whether anybody is writing, and what came out is compared. It knows nothing of
Boxfiles.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controller import files
from reconcilers.confinement import syscalls
from specs.errors import Conflict, HostError

OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True)
class Place:
    """A file name in a folder that is held open; `path` is only for messages."""

    folder: int
    name: str
    path: Path


@dataclass(frozen=True)
class Held:
    """A file that nobody begins to write to unseen while it is `leased`."""

    descriptor: int
    facts: os.stat_result
    data: bytes
    leased: bool

    def stands_at(self, place: Place) -> bool:
        """Whether `place` is this very file, with these bytes, and no writer waits to open it."""
        facts = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
        if (facts.st_dev, facts.st_ino) != (self.facts.st_dev, self.facts.st_ino):
            return False
        # A lease that is being broken reads as the lease that the breaker would leave us.
        if self.leased and fcntl.fcntl(self.descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
            return False
        try:
            return files.read_descriptor(self.descriptor, len(self.data), place.path) == self.data
        except files.TooLarge:
            return False


def changed_meanwhile(place: Place) -> Conflict:
    return Conflict(
        "somebody else changed it meanwhile",
        where=str(place.path),
        fix="look at their change, then apply again",
    )


@contextlib.contextmanager
def held(place: Place, limit: int) -> Iterator[Held]:
    """The regular file at `place`, read and held; Conflict when somebody is writing to it."""
    try:
        descriptor = os.open(place.name, OPEN_FILE, dir_fd=place.folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            raise changed_meanwhile(place) from None
        raise files.read_error(place.path, error) from error
    try:
        facts = os.fstat(descriptor)
        if not files.is_regular(facts):
            raise changed_meanwhile(place)
        leased = lease(descriptor, place)
        data = files.read_descriptor(descriptor, limit, place.path)
        yield Held(descriptor, facts, data, leased)
    finally:
        os.close(descriptor)  # ends the lease: a writer that waited goes on


def lease(descriptor: int, place: Place) -> bool:
    """Take a read lease: from now on, opening the file for writing waits for us.

    False on a file system without leases. Files are compared all the same there; only a program
    that opens the old file before the exchange and writes to it afterwards is not noticed.
    """
    # The kernel announces a waiting writer by SIGIO, whose default is to end the process; SIGURG is
    # ignored by default (signal(7)).
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        raise Conflict(
            "somebody has it open for writing",
            where=str(place.path),
            fix="apply again when they are done",
        ) from None
    except OSError:
        return False
    return True


def create(place: Place, data: bytes) -> None:
    """Make a new file, mode 0600, of the folder's owner where root makes it: their controller is to
    read it. Raises Conflict when something stands there, HostError else.
    """
    temporary = beside(place)
    try:
        facts = os.fstat(place.folder)
        owner = (facts.st_uid, facts.st_gid) if os.geteuid() == 0 else None
        files.write_new(temporary.name, data, 0o600, dir_fd=place.folder, owner=owner)
        try:
            syscalls.renameat2_noreplace(place.folder, temporary.name, place.folder, place.name)
        except OSError:
            os.unlink(temporary.name, dir_fd=place.folder)
            raise
        files.sync_folder(place.folder)
    except FileExistsError:
        raise changed_meanwhile(place) from None
    except OSError as error:
        raise files.write_error(place.path, error) from error


def replace(place: Place, old: Held, data: bytes) -> None:
    """Replace `old` at `place` by a file of `data` with its owner and mode, or change nothing.

    Raises Conflict when the file at `place` is another one by now, and HostError.
    """
    temporary = beside(place)
    try:
        mode = stat.S_IMODE(old.facts.st_mode)
        owner = (old.facts.st_uid, old.facts.st_gid)  # root's change must not take it from them
        files.write_new(temporary.name, data, mode, dir_fd=place.folder, owner=owner)
        try:
            with held(temporary, len(data)) as new:
                exchanged = exchange(temporary, place, old, new)
            if exchanged:
                files.sync_folder(place.folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary.name, dir_fd=place.folder)
    except FileNotFoundError:
        raise changed_meanwhile(place) from None
    except OSError as error:
        raise swap_error(place, error) from error
    if not exchanged:
        raise changed_meanwhile(place)


def exchange(temporary: Place, place: Place, old: Held, new: Held) -> bool:
    """Swap the two; False when something else than `old` came out, and then it is back in place.

    Afterwards the newest file of others, if there was one, stands at `place`, and `temporary` is
    ours to delete: a file of our own, or one that its own author has replaced since.
    """
    syscalls.renameat2_exchange(temporary.folder, temporary.name, place.folder, place.name)
    if old.stands_at(temporary):
        return True
    syscalls.renameat2_exchange(temporary.folder, temporary.name, place.folder, place.name)
    if not new.stands_at(temporary):
        # While ours stood there, somebody saved over it or into it: newer than what was just put
        # back.
        syscalls.renameat2_exchange(temporary.folder, temporary.name, place.folder, place.name)
    return False


def remove(place: Place, old: Held) -> None:
    """Delete `old` from `place`; raises Conflict when another file stands there, and HostError."""
    temporary = beside(place)
    try:
        os.rename(place.name, temporary.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        if not old.stands_at(temporary):
            try:
                syscalls.renameat2_noreplace(place.folder, temporary.name, place.folder, place.name)
            except FileExistsError:  # saved once more since: the newer one stays
                os.unlink(temporary.name, dir_fd=place.folder)
            raise changed_meanwhile(place)
        os.unlink(temporary.name, dir_fd=place.folder)
        files.sync_folder(place.folder)
    except FileNotFoundError:
        raise changed_meanwhile(place) from None
    except OSError as error:
        raise files.write_error(place.path, error) from error


def beside(place: Place) -> Place:
    """A hidden name in the same folder: RENAME_EXCHANGE works within one file system only."""
    name = f"{files.TEMPORARY_PREFIX}{os.urandom(8).hex()}"
    return Place(place.folder, name, place.path.with_name(name))


def swap_error(place: Place, error: OSError) -> HostError:
    if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return HostError(
            "its file system cannot exchange two files in one step",
            where=str(place.path),
            fix="keep the watched folder on a local file system, or edit the file by hand",
        )
    return files.write_error(place.path, error)
