"""What finished steps left: a disk for each, `builds/KEY`, whose layers are shared by hard links.

A disk is there completely or not at all, by one rename; it holds links to all layers beneath its
own, so that any of them may be removed at any time. What a VMM has written is never read here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from reconcilers import disk as disks
from reconcilers import layers
from reconcilers.builds.recipes import Stage
from reconcilers.chain import Chain, Layer
from reconcilers.facts import Disk
from specs.errors import BoxError, HostError

RECENT_SECONDS = 3600.0
_WORKING = ".work-"
_EMPTY = "empty"
_KEY_LENGTH = 40  # hexadecimal digits of a key that name its folder
_NAME = re.compile(rf"[0-9a-f]{{{_KEY_LENGTH}}}")


def folder_of(key: str) -> str:
    """How the folder of what `key` left is called."""
    return key[:_KEY_LENGTH]


def kept(folder: Path) -> Iterator[tuple[str, int]]:
    """What finished steps left in the folder of one home: what each is called, and the bytes of its
    own layer on the host's disk. Raises OSError.
    """
    for name in sorted(_names(folder)):
        yield name, _own_bytes(folder / name)


def _names(folder: Path) -> list[str]:
    """Of what steps left. Whatever else lies there is somebody's, where `builds` leads to another
    folder, say: it is not ours to remove.
    """
    with contextlib.suppress(FileNotFoundError):
        return [each for each in os.listdir(folder) if _NAME.fullmatch(each)]
    return []


def discard(folder: Path, name: str) -> Path | None:
    """Take it out of use by one rename; what is left to be removed, None when it is gone already.
    Raises OSError.
    """
    doomed = folder / f"{_WORKING}{secrets.token_hex(8)}"
    with contextlib.suppress(FileNotFoundError):
        (folder / name).rename(doomed)
        return doomed
    return None


def _own_bytes(disk: Path) -> int:
    with contextlib.suppress(BoxError, OSError):
        if (found := layers.read(disk)) is not None:
            return (disk / found[0].top.file).lstat().st_blocks * 512
    return 0  # it cannot be used, and may go


class Cache:
    """The folder of one home. Everything here blocks."""

    def __init__(self, folder: Path, disk_mib: int) -> None:
        self._folder = folder
        self._disk_mib = disk_mib

    def done(self, stages: Sequence[Stage], *, network: bool = True) -> tuple[int, str]:
        """How many of `stages`, from the first on, need not be run again, and the key of what the
        last of them left. With a `network`, what ran without one does not count.
        """
        for count in range(len(stages), 0, -1):
            last = stages[count - 1]
            for key in (last.key,) if network else (last.key, last.alone):
                with contextlib.suppress(BoxError, OSError):
                    if disks.observe(folder := self._at(key)) is not None:
                        os.utime(folder)  # when it was last used: `trim` goes by it
                        return count, key
        return 0, ""

    def fresh(self) -> Path:
        """Where the next disk that is worked on may lie."""
        return self._folder / f"{_WORKING}{secrets.token_hex(8)}"

    def begin(self, key: str, working: Path) -> Disk:
        """Make a disk at `working` that begins with what `key` left (nothing, where it is empty),
        to be written by one machine. Raises BoxError, OSError.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        parent = self._at(key) if key else self._empty()
        found = layers.read(parent)
        if found is None:
            raise HostError(f"{parent} is gone", fix="it is made again by the next try")
        size = layers.size_mib(parent, found[0])
        top = Layer(layers.new_file("qcow2"), size)
        layers.make_fork(parent, working, Chain("build", (*found[0].layers, top), size))
        return self._disk(working)

    def drop(self, working: Path) -> None:
        """Remove it, unless it was kept."""
        shutil.rmtree(working, ignore_errors=True)

    def keep(self, working: Path, key: str) -> None:
        """What is on the disk `working` is what `key` leaves, from now on and after a power cut. No
        VMM may have it open. Where another build was first, its disk stays.
        """
        top = self._disk(working).path
        layers.set_mode(top, layers.FROZEN_MODE)
        layers.sync(top)
        layers.sync(working)
        self._make_way(target := self._at(key))
        with _unless_there():
            working.rename(target)
        layers.sync(self._folder)

    def _disk(self, working: Path) -> Disk:
        found = disks.observe(working)
        if found is None:
            raise HostError(
                f"{working} is gone", fix="leave what is in builds/ to box; build again"
            )
        return found

    def trim(self, most: int) -> None:
        """Remove the disks that were used least recently, until all together hold at most `most`
        bytes of the host's disk. One used within the last hour stays: a build may go on from it.
        """
        recent = time.time() - RECENT_SECONDS
        held, counted = 0, set[int]()
        for folder in sorted(self._disks(), key=_last_used, reverse=True):
            with contextlib.suppress(OSError):  # it is gone meanwhile, or somebody put it there
                for facts in (each.stat(follow_symlinks=False) for each in os.scandir(folder)):
                    if facts.st_ino not in counted:
                        counted.add(facts.st_ino)
                        held += facts.st_blocks * 512
                if held > most and folder.stat().st_mtime < recent:
                    self._remove(folder)

    def sweep(self) -> None:
        """Remove what a killed controller had begun. Only while nothing is being built."""
        for pattern in (f"{_WORKING}*", ".new-*"):
            for leftover in self._folder.glob(pattern):
                shutil.rmtree(leftover, ignore_errors=True)

    def _at(self, key: str) -> Path:
        return self._folder / folder_of(key)

    def _disks(self) -> list[Path]:
        return [self._folder / name for name in _names(self._folder)]

    def _make_way(self, folder: Path) -> None:
        """Remove a disk that is not whole, which would stand in the way of a new one for ever."""
        with contextlib.suppress(BoxError, OSError):
            if disks.observe(folder) is not None:
                return
        self._remove(folder)

    def _remove(self, folder: Path) -> None:
        """By a rename first: no half of a disk under a name that is looked up."""
        with contextlib.suppress(OSError):
            if (doomed := discard(self._folder, folder.name)) is not None:
                shutil.rmtree(doomed, ignore_errors=True)

    def _empty_name(self) -> str:
        return f"{_EMPTY}-{self._disk_mib}"

    def _empty(self) -> Path:
        """An empty file system, made once."""
        folder = self._folder / self._empty_name()
        self._make_way(folder)
        if not folder.exists():
            with _unless_there():
                disks.create(folder, self._disk_mib)
        return folder


def _last_used(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime_ns
    return 0


@contextlib.contextmanager
def _unless_there() -> Iterator[None]:
    """Another build was first, which is as good."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
