"""Where a root image comes from, in two steps: what exactly it is, then its tree.

The first step must be enough to know whether the image is here already.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from reconcilers.hostpath import Opened, opened_directory
from reconcilers.images import fetch, localfile, ocilayout
from reconcilers.images.fetch import Fetched, Meant
from reconcilers.images.folder import FolderSource
from reconcilers.images.layers import Merge
from reconcilers.images.localfile import LocalFile
from reconcilers.images.manifest import Settings
from reconcilers.images.progress import Progress
from reconcilers.images.tarread import entries
from reconcilers.images.tree import Tree
from reconcilers.mounts import Rules, expanded, why_not_read
from specs.errors import HostError
from specs.imagename import Archive, Builtin, ImageName, Registry, Rootfs
from specs.text import visible

# Part of the identity of a tar file: what older versions made of one lacks names like `.wh.x`.
_PLAIN = "names of whiteouts are names"


@dataclass(frozen=True)
class Loaded:
    """A tree, how to get at the sources that its contents name, what the image says of itself, and
    how many sources there are. `unchanged` raises BadImage when it changed while it was read.
    """

    tree: Tree
    source: Callable[[int], int]
    settings: Settings
    sources: int
    devices: int = 0
    unchanged: Callable[[], None] = lambda: None


class Source(Protocol):
    """`identity` is all that the image depends on."""

    @property
    def identity(self) -> str: ...

    def load(self) -> Loaded: ...


def opened(
    name: ImageName,
    known: str,
    folder: Path,
    rules: Rules | None,
    stop: threading.Event,
    kept: ExitStack,
    progress: Progress,
) -> Source:
    """The source behind `name`, open as long as `kept`. `known` is what a registry's name stood for
    when it was resolved; what lies on this host is looked at anew. `folder` is for what it needs.

    Raises BoxError, OSError.
    """
    match name:
        case Registry():
            progress.stage(f"looking {name} up")
            meant = Meant(known) if known else fetch.resolve(name, stop)
            return _Registry(name, meant, folder, stop, kept, progress)
        case Archive():
            progress.stage(f"reading {name.path}")
            file = _local(name.path, rules, kept)
            return _Archive(name, file, folder, stop, kept, progress)
        case Rootfs():
            progress.stage(f"reading {name.path}")
            return _rootfs(name, folder, rules, stop, kept)
        case Builtin():
            raise AssertionError("it is made in another way")


class _Registry:
    def __init__(
        self,
        name: Registry,
        meant: Meant,
        folder: Path,
        stop: threading.Event,
        kept: ExitStack,
        progress: Progress,
    ) -> None:
        self._name, self._folder, self._stop, self._kept = name, folder, stop, kept
        self._meant, self._progress = meant, progress
        self.identity = meant.digest

    def load(self) -> Loaded:
        target = self._folder / "layers"
        self._progress.stage(f"fetching {self._name}")
        found = fetch.pull(self._name, self._meant, target, self._stop, self._progress)
        return _merged(found, self._kept, self._progress)


class _Archive:
    def __init__(
        self,
        name: Archive,
        file: LocalFile,
        folder: Path,
        stop: threading.Event,
        kept: ExitStack,
        progress: Progress,
    ) -> None:
        self._name, self._file, self._folder, self._stop = name, file, folder, stop
        self._kept, self._progress = kept, progress
        self.identity = f"{file.sha256(stop)}:{name.tag}"

    def load(self) -> Loaded:
        target = self._folder / "layers"
        self._progress.stage(f"unpacking {self._name}")
        layout = self._folder / "layout"
        ocilayout.unpack(self._file, layout, self._stop)
        found = fetch.unpack(self._name, layout, target, self._stop)
        shutil.rmtree(layout)
        return _merged(found, self._kept, self._progress)


class _Tar:
    def __init__(
        self, file: LocalFile, folder: Path, stop: threading.Event, kept: ExitStack
    ) -> None:
        self._file, self._folder, self._stop, self._kept = file, folder, stop, kept
        self.identity = f"{file.sha256(stop)} {_PLAIN}"

    def load(self) -> Loaded:
        plain = localfile.uncompressed(self._file, self._folder / "rootfs.tar", self._stop)
        archive = self._kept.enter_context(plain)
        merge = Merge()
        merge.apply(entries(archive, 0), whiteouts=False)
        return Loaded(
            tree=merge.tree,
            source=lambda number: archive.fileno(),
            settings=Settings(),
            sources=1,
            devices=merge.devices,
            unchanged=self._file.unchanged,
        )


class _Folder:
    def __init__(self, descriptor: int, path: str, stop: threading.Event, kept: ExitStack) -> None:
        self._source = FolderSource(descriptor, path, stop)
        kept.callback(self._source.close)
        self.identity = self._source.identity

    def load(self) -> Loaded:
        found = self._source
        return Loaded(
            tree=found.tree,
            source=found.descriptor,
            settings=Settings(),
            sources=found.count,
            devices=found.left_out,
            unchanged=found.unchanged,
        )


def _merged(found: Fetched, kept: ExitStack, progress: Progress) -> Loaded:
    progress.stage("laying the layers over each other")
    merge, files = Merge(), list[BinaryIO]()
    for number, path in enumerate(found.layers):
        file = open(path, "rb")  # noqa: SIM115  # open as long as `kept`
        files.append(kept.enter_context(file))
        merge.apply(entries(file, number))
    descriptors = [file.fileno() for file in files]
    return Loaded(
        merge.tree, descriptors.__getitem__, found.settings, len(descriptors), merge.devices
    )


def _rootfs(
    name: Rootfs, folder: Path, rules: Rules | None, stop: threading.Event, kept: ExitStack
) -> Source:
    path = _expanded(name.path)
    if os.path.isdir(path):
        at = _directory(path, name.path, kept)
        _allowed(at, name.path, rules, file=False)
        return _Folder(at.descriptor, visible(at.path, 300), stop, kept)
    return _Tar(_local(name.path, rules, kept), folder, stop, kept)


def _local(written: str, rules: Rules | None, kept: ExitStack) -> LocalFile:
    path = _expanded(written)
    at = _directory(os.path.dirname(path), written, kept)
    _allowed(at, written, rules, file=True)
    try:
        file = LocalFile.opened(at.descriptor, os.path.basename(path), at.path)
    except OSError as error:
        raise Unreadable(f"{written}: {error.strerror}", fix=f"ls -l {path}") from error
    kept.callback(file.close)
    return file


class Unreadable(HostError):
    """What a Boxfile names on this host is not there, or may not be made an image."""


def _expanded(written: str) -> str:
    try:
        return expanded(written)
    except OSError as error:
        raise Unreadable(f"{written}: {error.strerror}") from error


def _directory(path: str, written: str, kept: ExitStack) -> Opened:
    try:
        return kept.enter_context(opened_directory(path))
    except OSError as error:
        raise Unreadable(f"{written}: {error.strerror}", fix=f"ls -ld {path}") from error


def _allowed(at: Opened, written: str, rules: Rules | None, *, file: bool) -> None:
    if rules is not None and (why := why_not_read(at, rules, file=file)):
        raise Unreadable(f"{written}: {why}", fix="copy it to a folder of its own")
