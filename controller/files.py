"""Small files written so that a reader, or a power cut, sees the old bytes or the new ones.

Every durable file of a box home goes through here. This module decides nothing about content,
follows no final symlink, and imports only light modules of the standard library, because `box exec`
loads it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

from specs.errors import HostError

TEMPORARY_PREFIX = ".box-tmp-"

StatKey = tuple[int, int, int, int, int]
"""Device, inode, size in bytes, mtime and ctime in nanoseconds: equal keys mean unchanged bytes."""


class NotAFile(HostError):
    """Something else (a folder, FIFO, device, symlink) stands where a regular file belongs."""


class TooLarge(HostError):
    """A file holds more bytes than its reader accepts."""


def is_regular(facts: os.stat_result) -> bool:
    return stat.S_ISREG(facts.st_mode)


def stat_key(facts: os.stat_result) -> StatKey:
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def path_key(path: Path) -> StatKey | None:
    """The key of `path` itself (a final symlink is not followed); None when there is nothing."""
    try:
        return stat_key(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by a file of `data` with exactly `mode`; either all of it happens or nothing.

    Raises HostError naming the path when the disk is full, the folder is missing or read-only.
    """
    temporary = path.parent / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
    try:
        write_new(temporary, data, mode)
        try:
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from error


def write_new(
    path: Path | str,
    data: bytes,
    mode: int,
    *,
    dir_fd: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Create `path` (it must not exist), durable on return. A failure leaves no file behind.

    `owner` is a user and a group id. It is given through the descriptor: in a folder of somebody
    else the name may mean another file by then.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600, dir_fd=dir_fd)
    try:
        try:
            made = os.fstat(descriptor)
            if owner is not None and owner != (made.st_uid, made.st_gid):
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)  # after the owner, whose change clears set-user-ID bits
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        os.unlink(path, dir_fd=dir_fd)
        raise


def sync_folder(folder: Path | int) -> None:
    """Make renames in `folder` (a path or an open descriptor) survive a power cut."""
    if isinstance(folder, int):
        os.fsync(folder)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bounded(path: Path, limit: int) -> bytes:
    """The bytes of the regular file `path`, at most `limit`.

    Raises FileNotFoundError, NotAFile or TooLarge, or HostError for any other failure. Nothing that
    could block or act on being opened (a FIFO, a device) is opened for reading.
    """
    # O_PATH opens no device and no FIFO (open(2)); the type is known before the file itself is
    # opened.
    try:
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    except OSError as error:
        raise read_error(path, error) from error
    try:
        if not is_regular(os.fstat(handle)):
            raise NotAFile(
                "not a regular file", where=str(path), fix=f"move it away: mv {path} /tmp"
            )
        try:
            descriptor = reopen(handle)
        except OSError as error:
            raise read_error(path, error) from error
    finally:
        os.close(handle)
    try:
        return read_descriptor(descriptor, limit, path)
    except OSError as error:
        raise read_error(path, error) from error
    finally:
        os.close(descriptor)


def reopen(handle: int) -> int:
    """A descriptor for reading the regular file that the O_PATH descriptor `handle` stands for."""
    # The link in /proc leads to the inode itself, whatever its name means by now (proc(5)).
    return os.open(
        f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    )


def read_descriptor(descriptor: int, limit: int, path: Path | str) -> bytes:
    """All bytes of `descriptor`; raises TooLarge above `limit` bytes, and OSError."""
    parts: list[bytes] = []
    length = 0
    while part := os.pread(descriptor, min(limit + 1 - length, 1 << 20), length):
        parts.append(part)
        length += len(part)
        if length > limit:
            raise TooLarge(f"larger than {limit} bytes", where=str(path))
    return b"".join(parts)


def remove_leftovers(folder: Path) -> int:
    """Remove temporary files that a killed writer left in `folder`; the number removed.

    Only for folders with a single writer, at its start: a living writer's file looks the same.
    """
    count = 0
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for name in names:
        if name.startswith(TEMPORARY_PREFIX):
            try:
                os.unlink(folder / name)
                count += 1
            except OSError:
                continue
    return count


def holds(path: Path, data: bytes) -> bool:
    """Whether `path` is a regular file of exactly these bytes."""
    try:
        return read_bounded(path, len(data)) == data
    except (FileNotFoundError, HostError):
        return False


def ensure_folder(folder: Path) -> None:
    """Make `folder` a real folder, moving aside whatever else stands there."""
    try:
        if stat.S_ISDIR(folder.lstat().st_mode):
            return
        move_aside(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise write_error(folder, error) from error
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.parent)
    except OSError as error:
        raise write_error(folder, error) from error


def clear_place(path: Path) -> None:
    """Move aside what is no regular file, so that a regular file can be written there."""
    try:
        if not is_regular(path.lstat()):
            move_aside(path)
    except FileNotFoundError:
        return


def move_aside(path: Path) -> Path:
    """Rename `path` to PATH.garbled-TIME; nothing is ever replaced or deleted."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number = 1
    while True:
        target = path.with_name(
            f"{path.name}.garbled-{moment}" + (f"-{number}" if number > 1 else "")
        )
        if not os.path.lexists(target):
            break
        number += 1
    try:
        path.rename(target)
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from error
    return target


def write_error(path: Path | str, error: OSError) -> HostError:
    """A failed write as a HostError that says what to do about it."""
    parent = Path(path).parent
    fixes = {
        errno.ENOSPC: f"free some space: df -h {parent}",
        errno.EDQUOT: f"free some space or raise the quota: quota; du -sh {parent}",
        errno.EROFS: f"mount it writable, or choose another folder: findmnt -T {parent}",
        errno.EACCES: f"look at its owner and mode: ls -ld {parent}",
        errno.EPERM: f"look at its owner, mode and attributes: ls -ld {parent}; lsattr -d {parent}",
        errno.ENOENT: f"the folder is missing: mkdir -p {parent}",
        errno.EISDIR: f"a folder stands in its place: mv {path} {path}.old",
    }
    why = os.strerror(error.errno) if error.errno else str(error)
    fix = fixes.get(error.errno or 0, f"look at the folder: ls -ld {parent}")
    return HostError(f"cannot write: {why}", where=str(path), fix=fix)


def read_error(path: Path | str, error: OSError) -> HostError:
    why = os.strerror(error.errno) if error.errno else str(error)
    return HostError(f"cannot read: {why}", where=str(path), fix=f"look at it: ls -ld {path}")
