"""The watched folder as a source: its Boxfiles as bytes, re-read only when a file may have changed.

A scan is the truth and a watch only a hint, so a scan must be cheap, must never block on what it
finds (a FIFO, a device) and must never say "deleted" when it only knows "cannot be read". It does
not parse.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controller import files
from controller.sources.listing import (
    Candidate,
    Listing,
    explain,
    list_sources,
    open_beneath,
    was_switched,
)
from specs.document import SIZE_MAX
from specs.text import visible

BOXFILE_MAX = SIZE_MAX  # bytes
# A file that is changed twice within one tick of the file system's clock, without changing size,
# keeps its times. So a file is only believed unchanged once it had been still for longer than the
# coarsest clock in use (FAT: 2 s) when it was read.
SETTLED_NS = 2_000_000_000
READ_TRIES = 3
# A feeder is switched as a whole, so a scan must not mix two versions of it. One that never rests
# is taken as it comes; the hint for its last switch brings the next scan.
CONSISTENT_TRIES = 5
GONE_MEANWHILE = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Boxfile: its path relative to the folder, the SHA-256 of its bytes in hex, the bytes."""

    path: str
    digest: str
    data: bytes


@dataclass(frozen=True, slots=True)
class FolderMissing:
    """The folder cannot be read, which says nothing about the files that were in it."""

    reason: str


@dataclass(frozen=True)
class FolderScan:
    """One look at the folder.

    `files` holds the file that counts for each name, `broken` why a declared name cannot be read
    now: its sandbox is neither changed nor deleted. `twins` lists every path of a name declared
    more than once, the one that counts first. `problems` are (path, message) pairs to report.
    """

    identity: tuple[int, int]
    files: dict[str, SourceFile]
    twins: dict[str, tuple[str, ...]]
    problems: tuple[tuple[str, str], ...]
    broken: dict[str, str]

    @property
    def present(self) -> frozenset[str]:
        """Names that must not be taken for deleted."""
        return frozenset(self.files) | frozenset(self.broken)


@dataclass(slots=True)
class Remembered:
    key: files.StatKey
    settled: bool
    source: SourceFile


@dataclass
class ScanCache:
    """What the last scan read, so that the next one need not. For one folder, one scanner."""

    resolved: Path | None = None  # the folder, its symlinks resolved once
    entries: dict[str, Remembered] = field(default_factory=dict)
    reads: int = 0  # files read since the start, for measurements


class Unusable(Exception):
    """A source file that exists but cannot be used; the text says why."""


class Gone(Exception):
    """A source file that was deleted after it had been listed."""


def scan(
    folder: Path, cache: ScanCache, recorded: Mapping[str, str] | None = None
) -> FolderScan | FolderMissing:
    """Read every Boxfile in `folder`; `recorded` maps names to the path that was used last.

    Of several files for one name the recorded one counts, else the first in sorted order. Blocks
    only for the disk. Never raises for anything found in the folder.
    """
    recorded = recorded or {}
    try:
        if cache.resolved is None:
            cache.resolved = folder.resolve(strict=True)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        root = os.open(cache.resolved, flags)
    except (OSError, RuntimeError) as error:
        return FolderMissing(missing_reason(cache.resolved or folder, error))
    try:
        facts = os.fstat(root)
        for _ in range(CONSISTENT_TRIES):
            listing = list_sources(root)
            found = read_all(root, (facts.st_dev, facts.st_ino), listing, cache, recorded)
            if not was_switched(root, listing):
                break
        return found
    except OSError as error:
        return FolderMissing(missing_reason(cache.resolved, error))
    finally:
        os.close(root)


def missing_reason(folder: Path, error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number else str(error)
    return f"{folder}: {reason}"


def read_all(
    root: int,
    identity: tuple[int, int],
    listing: Listing,
    cache: ScanCache,
    recorded: Mapping[str, str],
) -> FolderScan:
    found: dict[str, SourceFile] = {}
    broken: dict[str, str] = {}
    twins: dict[str, tuple[str, ...]] = {}
    problems = list(listing.problems)
    entries: dict[str, Remembered] = {}
    by_name: dict[str, list[Candidate]] = {}
    for candidate in listing.candidates:
        by_name.setdefault(candidate.name, []).append(candidate)
    for name, candidates in by_name.items():
        ordered = (
            by_precedence(candidates, recorded.get(name)) if len(candidates) > 1 else candidates
        )
        living: list[str] = []
        for candidate in ordered:
            try:
                remembered = read_one(root, candidate, cache)
            except Gone:
                continue
            except Unusable as why:
                problems.append((candidate.path, str(why)))
                if not living:
                    broken[name] = f"{candidate.path}: {why}"
            else:
                entries[candidate.path] = remembered
                if not living:
                    found[name] = remembered.source
            living.append(candidate.path)
        if len(living) > 1:
            twins[name] = tuple(living)
    # A recorded file that turned into something unreadable is not a deleted file.
    for path, reason in listing.lost.items():
        for name, source in recorded.items():
            if name in found or name in broken:
                continue
            if source == path or (path.endswith("/") and source.startswith(path)):
                broken[name] = f"{source}: {reason}"
                problems.append((source, reason))
    cache.entries = entries
    return FolderScan(identity, found, twins, tuple(sorted(set(problems))), broken)


def by_precedence(candidates: list[Candidate], recorded: str | None) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: (candidate.path != recorded, candidate.path))


def read_one(root: int, candidate: Candidate, cache: ScanCache) -> Remembered:
    """The file's content, from the cache when it is unchanged; raises Gone or Unusable."""
    known = cache.entries.get(candidate.path)
    settled = known is not None and known.settled
    if known and settled and not candidate.link and known.key == files.stat_key(candidate.facts):
        return known
    try:
        # O_PATH opens neither FIFO nor device: the kind is known before anything is opened
        # (open(2)).
        handle = open_beneath(root, candidate.path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in GONE_MEANWHILE and not is_still_there(root, candidate):
            raise Gone from None
        raise Unusable(explain(error)) from None
    try:
        facts = os.fstat(handle)
        if known and settled and known.key == files.stat_key(facts):
            return known
        if not files.is_regular(facts):
            raise Unusable("leads to something that is not a regular file")
        return read_new(handle, candidate.path, cache)
    except OSError as error:
        raise Unusable(explain(error)) from None
    finally:
        os.close(handle)


def is_still_there(root: int, candidate: Candidate) -> bool:
    try:
        os.stat(candidate.path, dir_fd=root, follow_symlinks=False)
    except OSError:
        return False
    return True


def read_new(handle: int, path: str, cache: ScanCache) -> Remembered:
    descriptor = files.reopen(handle)
    try:
        for _ in range(READ_TRIES):
            now = time.time_ns()
            key = files.stat_key(os.fstat(descriptor))
            data = files.read_descriptor(descriptor, BOXFILE_MAX, visible(path))
            cache.reads += 1
            if key == files.stat_key(os.fstat(descriptor)):
                break  # else somebody wrote while we read
    except files.TooLarge:
        raise Unusable(f"larger than {BOXFILE_MAX // 1024} KiB, no Boxfile needs that") from None
    finally:
        os.close(descriptor)
    # Only ctime: nobody can set it. In the future (a clock set back) it never counts as settled: to
    # read again is better than to miss a change.
    settled = now - key[4] > SETTLED_NS
    known = cache.entries.get(path)
    digest = hashlib.sha256(data).hexdigest()
    if known is not None and known.source.digest == digest:
        return Remembered(key, settled, known.source)
    return Remembered(key, settled, SourceFile(path, digest, data))
