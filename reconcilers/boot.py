"""The files a VMM boots from, held open: the guest kernel and our initramfs, each with its SHA-256.

A hash is taken from the very descriptor that is later bound into the jail, so what was hashed is
what is booted. Hashing 50 MB at every start would cost as much as the jail, so a descriptor is
hashed once and held; a changed file is another one.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from agent.build import agent_binary
from agent.initramfs import build_initramfs
from reconcilers.kernel import Kernel, boot_modules
from specs.errors import HostError


@dataclass(frozen=True)
class BootFile:
    """An open, hashed file. The descriptor belongs to `BootFiles` and is only bound read-only."""

    descriptor: int
    sha256: str
    path: Path


@dataclass(frozen=True)
class Boot:
    """What one VM is started with."""

    kernel: BootFile
    initramfs: BootFile
    release: str


class BootFiles:
    """Keeps the current kernel and initramfs open for the life of the controller."""

    def __init__(self, kernels: Path) -> None:
        self._kernels = kernels
        self._held: dict[tuple[int, ...], BootFile] = {}
        self._lock = threading.Lock()  # passes ask from threads: hashing takes its time
        self._initramfs: dict[tuple[str | int, ...], Path] = {}

    def current(self, kernel: Kernel, features: frozenset[str] = frozenset()) -> Boot:
        """The kernel, and the initramfs made for it with the modules of `features` (built when
        missing; blocking). Raises HostError.
        """
        with self._lock:
            return self._current(kernel, features)

    def _current(self, kernel: Kernel, features: frozenset[str]) -> Boot:
        image = self._open(kernel.image)
        initramfs = self._open(self._initramfs_for(kernel, image, features))
        if initramfs.path.stem != f"initramfs-{initramfs.sha256}":  # it was changed since
            initramfs.path.unlink()
            initramfs = self._open(self._initramfs_for(kernel, image, features))
        return Boot(image, initramfs, kernel.release)

    def _open(self, path: Path) -> BootFile:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise HostError(f"cannot open {path}: {error.strerror}") from error
        facts = os.fstat(descriptor)
        key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        if key in self._held:
            os.close(descriptor)
            return self._held[key]
        for old in [other for other in self._held if self._held[other].path == path]:
            os.close(self._held.pop(old).descriptor)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._held[key] = BootFile(descriptor, digest, path)
        return self._held[key]

    def _initramfs_for(self, kernel: Kernel, image: BootFile, features: frozenset[str]) -> Path:
        agent = agent_binary()
        facts = agent.stat()
        key: tuple[str | int, ...] = (
            image.sha256, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns,
            *sorted(features),
        )  # fmt: skip
        known = self._initramfs.get(key)
        if known is not None and known.is_file():
            return known
        content = build_initramfs(agent, boot_modules(kernel, features))
        self._kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self._kernels / f"initramfs-{hashlib.sha256(content).hexdigest()}.cpio"
        if not target.is_file():
            for leftover in self._kernels.glob(".initramfs-*"):
                leftover.unlink()  # of a controller that was killed right here
            temporary = target.with_name(f".{target.name}.{os.getpid()}")
            try:
                with open(temporary, "xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                temporary.unlink(missing_ok=True)  # half of it may be what fills the disk
                raise HostError(
                    f"the initramfs cannot be written: {error.strerror}",
                    where=str(self._kernels),
                    fix=f"free some space: df -h {self._kernels}",
                ) from error
            temporary.rename(target)
        self._initramfs[key] = target
        return target
