"""Writing a Boxfile into the watched folder without losing anybody else's change.

The folder is the one entrance for changes, for people with editors as much as for `box apply` and
the API. A write names the content it was made for (`if_match`) and fails if that is no longer
there. Files that something else manages are refused, since the change would be undone. The content
is not judged here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from controller import files, swap
from controller.sources.folder import BOXFILE_MAX
from controller.sources.listing import BOXFILE, OPEN_FOLDER, Candidate, list_sources, open_beneath
from controller.swap import Place
from reconcilers.confinement import ordinary
from specs.errors import Conflict, HostError, UsageError
from specs.names import check_name

ABSENT = ""
"""As `if_match`: there must be no file for this name yet."""

Outcome = Literal["created", "configured", "unchanged"]

LOCK_SECONDS = 10.0
STALE_SECONDS = 3600.0


def digest_of(data: bytes) -> str:
    """What `if_match` is compared with: the SHA-256, in hex, of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def apply_text(
    folder: Path, name: str, data: bytes, *, if_match: str | None, suffix: str = ".box.yaml"
) -> Outcome:
    """Make the file that declares `name` in `folder` hold `data`.

    The existing file is replaced, keeping its owner and mode; else `name` + `suffix` is created,
    mode 0600. `if_match` is the digest the file must have, ABSENT, or None for whatever it is when
    the call begins. Raises Conflict when it differs, when somebody saves at the same moment, when
    several files declare `name` or when the file is managed by something else (a symlink, a NAME.d
    feeder); HostError when the disk refuses. Nothing has changed then.
    """
    check_name(name)
    if len(data) > BOXFILE_MAX:
        raise UsageError(f"a Boxfile of {len(data)} bytes is too large, {BOXFILE_MAX} are allowed")
    with opened(folder) as root, one_at_a_time():
        sweep(root)
        target = find(root, folder, name)
        if target is None:
            return create(root, folder, name, suffix, data, if_match)
        refuse_other_format(target, suffix)
        with place_of(root, folder, target) as place, swap.held(place, BOXFILE_MAX) as old:
            compare(place, old, if_match)
            if old.data == data:
                return "unchanged"
            swap.replace(place, old, data)
            return "configured"


def delete_file(folder: Path, name: str, *, if_match: str | None = None) -> bool:
    """Delete the file that declares `name`; False when there is none. Raises as `apply_text`."""
    check_name(name)
    with opened(folder) as root, one_at_a_time():
        sweep(root)
        target = find(root, folder, name)
        if target is None:
            return False
        with place_of(root, folder, target) as place, swap.held(place, BOXFILE_MAX) as old:
            compare(place, old, if_match)
            swap.remove(place, old)
        parent = target.path.rpartition("/")[0]
        if parent:
            with contextlib.suppress(OSError):  # it holds more than the Boxfile: leave it
                os.rmdir(parent, dir_fd=root)
        return True


def find_source(folder: Path, name: str) -> Path | None:
    """The one file that declares `name`, None when there is none; raises as `apply_text` does."""
    with opened(folder) as root:
        target = find(root, folder, check_name(name))
    return None if target is None else folder / target.path


def create(
    root: int, folder: Path, name: str, suffix: str, data: bytes, if_match: str | None
) -> Outcome:
    place = Place(root, name + suffix, folder / (name + suffix))
    if if_match not in (None, ABSENT):
        raise Conflict(
            f"no file declares {name} any more, it was expected unchanged",
            where=str(folder),
            fix="look at the folder, then apply again",
        )
    with contextlib.suppress(FileNotFoundError):
        if not files.is_regular(os.stat(place.name, dir_fd=root, follow_symlinks=False)):
            raise Conflict(
                "something that is no file stands here",
                where=str(place.path),
                fix=f"move it away: mv {place.path} {place.path}.old",
            )
    swap.create(place, data)
    return "created"


def compare(place: Place, old: swap.Held, if_match: str | None) -> None:
    if if_match == ABSENT:
        raise Conflict(
            "exists already",
            where=str(place.path),
            fix="choose another name; box get shows which there are",
        )
    if if_match is not None and digest_of(old.data) != if_match:
        raise swap.changed_meanwhile(place)


def find(root: int, folder: Path, name: str) -> Candidate | None:
    try:
        listing = list_sources(root)
    except OSError as error:
        raise files.read_error(folder, error) from error
    found = [candidate for candidate in listing.candidates if candidate.name == name]
    if not found:
        return None
    if len(found) > 1:
        paths = ", ".join(candidate.path for candidate in found)
        raise Conflict(
            f"several files declare {name}: {paths}", where=str(folder), fix="keep one of them"
        )
    target = found[0]
    where = str(folder / target.path)
    if target.link:
        raise Conflict(
            f"is a symlink{leads_to(root, target.path)}, so something else manages this file and"
            " would undo the change",
            where=where,
            fix="change the file it leads to, or replace the symlink by a file of its own",
        )
    parent, _, filename = target.path.rpartition("/")
    if parent and filename != BOXFILE:
        raise Conflict(
            f"belongs to {parent}/, whose feeder would undo the change",
            where=where,
            fix=f"change it where {parent}/ comes from",
        )
    return target


def leads_to(root: int, path: str) -> str:
    try:
        return f" to {os.readlink(path, dir_fd=root)}"
    except OSError:
        return ""  # not the file, but the folder it is in, is the symlink


def refuse_other_format(target: Candidate, suffix: str) -> None:
    if target.path.endswith(".toml") != suffix.endswith(".toml"):
        raise Conflict(
            f"{target.path} already declares {target.name}, in the other format",
            fix=f"write it in the format of {target.path}, or delete that file first",
        )


@contextlib.contextmanager
def place_of(root: int, folder: Path, target: Candidate) -> Iterator[Place]:
    """The target in its own folder, which is opened without leaving the watched one."""
    parent, _, filename = target.path.rpartition("/")
    path = folder / target.path
    if not parent:
        yield Place(root, filename, path)
        return
    try:
        descriptor = open_beneath(root, parent, OPEN_FOLDER | os.O_NOFOLLOW)
    except OSError as error:
        raise files.read_error(path.parent, error) from error
    try:
        yield Place(descriptor, filename, path)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    try:
        descriptor = os.open(folder, OPEN_FOLDER)
    except OSError as error:
        raise files.read_error(folder, error) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lock_path() -> Path:
    """One for all homes of a user: two of them may watch one folder."""
    folder = Path("/run/box") if os.geteuid() == 0 else ordinary.state_folder()
    return folder / "apply.lock"


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let box's own writers queue up instead of conflicting; waits LOCK_SECONDS at most."""
    lock = lock_path()
    try:
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(lock, flags, 0o600)
    except OSError as error:
        raise files.write_error(lock, error) from error
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise HostError(
                    f"another box process has been writing for {LOCK_SECONDS:.0f} s",
                    where=str(lock),
                    fix=f"find it: fuser -v {lock}",
                )
            time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sweep(root: int) -> None:
    """Remove temporary files of a killed apply; no living one is that old, and we hold the lock."""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if not entry.name.startswith(files.TEMPORARY_PREFIX):
                continue
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_ctime > STALE_SECONDS:
                    os.unlink(entry.name, dir_fd=root)
