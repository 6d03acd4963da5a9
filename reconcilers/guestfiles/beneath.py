"""The one module through which the host touches names that a guest chose.

Each call takes the descriptor of a directory and one name in it, never a path. A name is opened
with openat2 beneath that directory, no link is followed, and only a regular file or a directory is
ever opened for more than to look at it. It must not decide what a tree should hold, and nothing
outside it may open a guest's name; where one is in a tree is `cursor.Cursor`'s business.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from reconcilers.confinement import syscalls
from specs.errors import HostError
from specs.text import visible

NAME_MAX = 255  # bytes, limits.h(0p)
RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
# Of one openat2 with several names, whose path ends with a zero byte (PATH_MAX, limits.h(0p)).
_PATH_MAX = 4095
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_LOOK = os.O_PATH | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# What cannot be on some file systems: a name that is too long or not of its character set, links,
# a file of this size.
CANNOT_BE = frozenset(
    {errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK}
    | {errno.EFBIG}
)


class UnsafeName(HostError):
    """A name that is none: empty, too long, `.`, `..`, with a slash or a zero byte in it."""


def check(name: bytes) -> bytes:
    """`name` itself. Raises UnsafeName unless it names something in the very directory."""
    if not name or len(name) > NAME_MAX or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise UnsafeName(f"{shown(name)} cannot be the name of a file")
    return name


def shown(name: bytes, limit: int = 200) -> str:
    """A name, or names with slashes between them, as text that is safe to show."""
    return visible(os.fsdecode(name[-4 * limit :]), limit)


# -- looking and opening --------------------------------------------------------------------------


def names_in(directory: int) -> list[bytes]:
    """What the directory holds, in order, byte for byte."""
    return sorted(map(os.fsencode, os.listdir(directory)))


def look(directory: int, name: bytes) -> tuple[int, os.stat_result]:
    """What has this name, without opening it: a descriptor that only holds it (O_PATH), the
    caller's, and its facts. Raises OSError.
    """
    descriptor = syscalls.openat2(directory, check(name), _LOOK, _HOLD)
    try:
        return descriptor, os.fstat(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


# A link is held as such: O_PATH and O_NOFOLLOW together open the link itself, which
# RESOLVE_NO_SYMLINKS would refuse (openat2(2)). One name has nothing in front of it to be followed.
_HOLD = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS


def open_folder(directory: int, name: bytes) -> int:
    """A descriptor to list and change the directory of this name. Raises OSError: ELOOP, ENOTDIR
    for a link or what else is no directory.
    """
    return syscalls.openat2(directory, check(name), _FOLDER, RESOLVE)


def open_held(held: int) -> int:
    """The regular file that `look` gave a descriptor of, for reading: the very one, whatever has
    its name by now. Raises OSError EINVAL for anything but a regular file, which is not opened.
    """
    if not stat.S_ISREG(os.fstat(held).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return os.open(_itself(held), _READ)


def open_held_folder(held: int) -> int:
    """As `open_held`, for the directory that `look` gave a descriptor of. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    return os.open(_itself(held), flags)


def target_of(held: int) -> bytes:
    """Where the link leads that `look` gave a descriptor of; nothing follows it. Raises OSError."""
    return os.readlink(b"", dir_fd=held)


def _itself(descriptor: int) -> str:
    """The file behind a descriptor as a path: proc(5) leads to it and to nothing else."""
    return f"/proc/self/fd/{descriptor}"


# -- making ---------------------------------------------------------------------------------------


def make_folder(directory: int, name: bytes) -> int:
    """A new directory, mode 0700, and its descriptor. Raises OSError, EEXIST for what is there."""
    os.mkdir(check(name), 0o700, dir_fd=directory)
    return open_folder(directory, name)


def make_file(directory: int, name: bytes) -> int:
    """A new file, mode 0600, open for writing. Raises OSError, EEXIST for what is there, also for
    a link to nowhere.
    """
    return syscalls.openat2(directory, check(name), _MAKE, RESOLVE, 0o600)


def make_symlink(directory: int, name: bytes, target: bytes, mtime_ns: int) -> None:
    """A link that says `target`, which is only written down. Raises OSError."""
    os.symlink(target, check(name), dir_fd=directory)
    os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=directory, follow_symlinks=False)


def make_hard_link(source: int, old: bytes, directory: int, name: bytes) -> None:
    """A second name for the file `old` in the directory `source`. Raises OSError, EEXIST."""
    os.link(check(old), check(name), src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)


def settle_file(descriptor: int, mode: int, mtime_ns: int) -> None:
    """Give an open file its final mode, only what is in 0777, and its time."""
    os.fchmod(descriptor, mode & 0o777)
    os.utime(descriptor, ns=(mtime_ns, mtime_ns))


def settle_folder(descriptor: int, mode: int, mtime_ns: int) -> None:
    """Give an open directory its final mode, only what is in 01777, and its time."""
    os.fchmod(descriptor, mode & 0o1777)
    os.utime(descriptor, ns=(mtime_ns, mtime_ns))


# -- removing -------------------------------------------------------------------------------------


def remove_file(directory: int, name: bytes) -> None:
    """Remove what has this name and is no directory. Raises OSError."""
    os.unlink(check(name), dir_fd=directory)


def remove_tree(directory: int, name: bytes) -> None:
    """Remove what has this name, and all beneath it, whatever its modes and however deep. Raises
    OSError; FileNotFoundError when there is nothing.

    Every directory in it is first moved to its top, so that depth costs nothing and nothing is
    climbed back from. Killed in between, the same call goes on.
    """
    try:
        os.unlink(check(name), dir_fd=directory)
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):  # unlink(2): a directory
            raise
    top = _own_folder(directory, name)
    try:
        waiting = _empty_into(top, top, None)
        while waiting:
            each = waiting.pop()
            folder = _own_folder(top, each)
            try:
                waiting += _empty_into(folder, top, each)
            finally:
                os.close(folder)
            os.rmdir(each, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=directory)


def _own_folder(directory: int, name: bytes) -> int:
    """Open a directory that is to be removed; its mode must not stand in the way."""
    try:
        return open_folder(directory, name)
    except PermissionError:
        _unlock(directory, name)
        return open_folder(directory, name)


def _unlock(directory: int, name: bytes) -> None:
    held, facts = look(directory, name)
    try:
        if stat.S_ISDIR(facts.st_mode):
            os.chmod(_itself(held), 0o700)
    finally:
        os.close(held)


def _empty_into(folder: int, top: int, parent: bytes | None) -> list[bytes]:
    """Unlink what is in `folder`; directories move to `top`, and are returned by their names there.
    `parent` is None for `top` itself, whose directories stay where they are.
    """
    if os.fstat(folder).st_mode & 0o700 != 0o700:
        os.fchmod(folder, 0o700)
    found: list[bytes] = []
    for name in names_in(folder):
        try:
            os.unlink(name, dir_fd=folder)
            continue
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=folder)
            continue
        _unlock(folder, name)  # rename(2) writes `..` in it
        if parent is None:
            found.append(name)
            continue
        found.append(_moved(folder, name, top))
    return found


def _moved(folder: int, name: bytes, top: int) -> bytes:
    while True:
        new = b".%d-%s" % (os.getpid(), os.urandom(8).hex().encode())
        with contextlib.suppress(FileExistsError):
            syscalls.renameat2_noreplace(folder, os.fsdecode(name), top, new.decode())
            return new


# -- from the root of a tree down ------------------------------------------------------------------


def walk(root: int, names: list[bytes]) -> int:
    """The directory that these names lead to from `root`, one after the other, however many. Raises
    OSError as `open_folder`.
    """
    at = os.dup(root)
    try:
        for path in _pieces(names):
            below = syscalls.openat2(at, path, _FOLDER, RESOLVE)
            os.close(at)
            at = below
    except BaseException:
        os.close(at)
        raise
    return at


def _pieces(names: list[bytes]) -> Iterator[bytes]:
    """The names joined, as many at a time as one system call takes."""
    piece: list[bytes] = []
    size = 0
    for name in names:
        if size + len(name) + 1 > _PATH_MAX:
            yield b"/".join(piece)
            piece, size = [], 0
        piece.append(check(name))
        size += len(name) + 1
    if piece:
        yield b"/".join(piece)
