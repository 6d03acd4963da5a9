"""Which entries of a watched folder declare a sandbox, by name and kind alone.

Nothing is opened for reading here except folders, and nothing outside the watched folder is
followed. What the files say is not this module's business.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache

from controller.files import StatKey, stat_key
from reconcilers.confinement import syscalls
from specs.errors import BadName
from specs.names import check_name, is_name
from specs.parse import is_ignored, name_from_filename
from specs.text import visible

BOXFILE = "Boxfile"
FEEDER_SUFFIX = ".d"
SOURCE_SUFFIXES = (".yaml", ".yml", ".box.toml")

RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK
# openat2(2): EAGAIN when a rename elsewhere made ".." uncertain under RESOLVE_BENEATH; try again.
UNCERTAIN_TRIES = 8

OUTSIDE = (
    "OutsideFolder: a symlink that leads outside the watched folder (an absolute one always does);"
    " put the file itself here, or link to it with a relative path beneath the folder"
)


class Kind(Enum):
    SKIP = auto()
    FILE = auto()  # NAME.yaml and its like
    FOLDER = auto()  # NAME/, which may hold a Boxfile
    FEEDER = auto()  # NAME.d/
    BAD_NAME = auto()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that declares `name`; `path` is relative to the watched folder.

    `facts` are those of the entry itself, not of what a symlink leads to.
    """

    path: str
    name: str
    facts: os.stat_result
    link: bool


@dataclass(slots=True)
class Listing:
    """`lost` maps a path (a folder's ends with a slash) to why nothing is known about it.

    `switches` are the feeders that are symlinks, each as it was before it was read through.
    """

    candidates: list[Candidate] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    switches: dict[str, StatKey] = field(default_factory=dict)


@lru_cache(maxsize=8192)
def classify(filename: str) -> tuple[Kind, str]:
    """What an entry of this name may be, and the sandbox name or the reason."""
    if is_ignored(filename):
        return (Kind.SKIP, "")
    if filename.endswith(SOURCE_SUFFIXES):
        name = name_from_filename(filename) or ""
        try:
            return (Kind.FILE, check_name(name))
        except BadName as error:
            return (Kind.BAD_NAME, f"{error.message}; {error.fix}")
    if is_name(filename):
        return (Kind.FOLDER, filename)
    if filename.endswith(FEEDER_SUFFIX) and is_name(filename.removesuffix(FEEDER_SUFFIX)):
        return (Kind.FEEDER, "")
    return (Kind.SKIP, "")


def list_sources(root: int) -> Listing:
    """Everything in the folder open as `root` that declares a sandbox; raises OSError.

    Files that are no regular file or symlink are left out, except that `lost` names them.
    """
    listing = Listing()
    with os.scandir(root) as entries:
        for entry in entries:
            kind, name = classify(entry.name)
            if kind is Kind.SKIP:
                continue
            if kind is Kind.FILE:
                add_file(listing, entry, entry.name, name)
            elif kind is Kind.FOLDER:
                add_folder(listing, root, entry, name)
            elif kind is Kind.FEEDER:
                add_feeder(listing, root, entry)
            elif not entry.is_dir(follow_symlinks=False):
                listing.problems.append((visible(entry.name), name))
    listing.candidates.sort(key=lambda candidate: candidate.path)
    return listing


def add_file(listing: Listing, entry: os.DirEntry[str], path: str, name: str) -> None:
    try:
        link = entry.is_symlink()
        if not link and not entry.is_file(follow_symlinks=False):
            listing.lost[path] = "no regular file stands at this name any more"
            return
        facts = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    listing.candidates.append(Candidate(path, name, facts, link))


def add_folder(listing: Listing, root: int, entry: os.DirEntry[str], name: str) -> None:
    path = f"{name}/{BOXFILE}"
    if entry.is_symlink():
        # Only to learn where it leads: many symlinks are not meant for us and hold no Boxfile.
        try:
            os.close(open_beneath(root, name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            listing.lost[path] = explain(error)
            if error.errno in (errno.EXDEV, errno.ELOOP):
                listing.problems.append((name, explain(error)))
            return
    elif not entry.is_dir(follow_symlinks=False):
        return
    try:
        facts = os.stat(path, dir_fd=root, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        listing.lost[path] = explain(error)
        listing.problems.append((path, explain(error)))
        return
    if is_link(facts) or is_file(facts):
        # Behind a symlink the path is opened anew each time, so that it cannot begin to lead
        # outside.
        link = is_link(facts) or entry.is_symlink()
        listing.candidates.append(Candidate(path, name, facts, link))
    else:
        listing.lost[path] = "no regular file stands at this name any more"


def add_feeder(listing: Listing, root: int, entry: os.DirEntry[str]) -> None:
    if entry.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            listing.switches[entry.name] = stat_key(entry.stat(follow_symlinks=False))
    elif not entry.is_dir(follow_symlinks=False):
        return
    prefix = f"{entry.name}/"
    try:
        descriptor = open_beneath(root, entry.name, OPEN_FOLDER)
        try:
            with os.scandir(descriptor) as entries:
                add_feeder_entries(listing, entries, prefix)
        finally:
            os.close(descriptor)
    except OSError as error:
        listing.lost[prefix] = explain(error)
        listing.problems.append((entry.name, explain(error)))


def add_feeder_entries(listing: Listing, entries: Iterable[os.DirEntry[str]], prefix: str) -> None:
    for entry in entries:
        kind, name = classify(entry.name)
        if kind is Kind.FILE:
            add_file(listing, entry, prefix + entry.name, name)
        elif kind is Kind.BAD_NAME and not entry.is_dir(follow_symlinks=False):
            listing.problems.append((prefix + visible(entry.name), name))


def was_switched(root: int, listing: Listing) -> bool:
    """Whether a feeder's symlink was replaced since it was listed."""
    for name, before in listing.switches.items():
        try:
            now = stat_key(os.stat(name, dir_fd=root, follow_symlinks=False))
        except OSError:
            return True
        if now != before:
            return True
    return False


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open `path` below `root`; symlinks count as long as they stay below. Raises OSError."""
    for _ in range(UNCERTAIN_TRIES - 1):
        try:
            return syscalls.openat2(root, path, flags, RESOLVE)
        except BlockingIOError:
            continue
    return syscalls.openat2(root, path, flags, RESOLVE)


def explain(error: OSError) -> str:
    """Why a source cannot be used, for its owner."""
    if error.errno == errno.EXDEV:
        return OUTSIDE
    if error.errno == errno.ELOOP:
        return "symlinks that lead in a circle"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "a symlink that leads to nothing"
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot be read: {reason}"


def is_link(facts: os.stat_result) -> bool:
    return (facts.st_mode & 0o170000) == 0o120000


def is_file(facts: os.stat_result) -> bool:
    return (facts.st_mode & 0o170000) == 0o100000
