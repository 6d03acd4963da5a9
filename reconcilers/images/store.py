"""Root images: read-only squashfs files, content-addressed, built once and shared by every sandbox.

A VMM gets a read-only descriptor of the file; nothing here ever hands out a path a guest could
write. The digest names what went in, and the file's own hash is compared before each boot.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from pathlib import Path

from reconcilers.facts import Image
from reconcilers.images import builtin
from reconcilers.process import run
from reconcilers.smallfile import read_small
from specs.errors import HostError


class Images:
    """The images folder of one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[tuple[str, tuple[int, ...]], str] = {}
        self._building = threading.Lock()

    def digest_for(self, base: str) -> str:
        """The digest of its image, remembered while the host's busybox is the same file."""
        signature = _signature(builtin.BUSYBOX)
        key = (base, signature)
        if key not in self._digests:
            if base != "builtin:busybox":
                raise HostError(f"base {base} is not supported yet")
            self._digests[key] = builtin.wanted_digest()
        return self._digests[key]

    def observe(self, base: str) -> Image | None:
        """The image of `base` if it is here whole; None when it must be built. Raises HostError."""
        digest = self.digest_for(base)
        folder = self._folder / digest
        try:
            sha256 = read_small(folder / "sha256").decode().strip()
        except (OSError, HostError, UnicodeDecodeError):
            return None
        path = folder / "root.squashfs"
        if not path.is_file():
            return None
        return Image(digest, sha256, path)

    def build(self, base: str) -> Image:
        """Build the image of `base` (blocking). Raises HostError or CommandError; a failed build
        leaves nothing. One that was built while this call waited for another is returned as it is.
        """
        with self._building:
            return self.observe(base) or self._build(base)

    def _build(self, base: str) -> Image:
        digest = self.digest_for(base)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self._folder.glob(".build-*"):
            shutil.rmtree(leftover, ignore_errors=True)  # of a controller that was killed
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".build-") as scratch:
            tree, ready = Path(scratch) / "tree", Path(scratch) / "ready"
            builtin.busybox_tree(tree)
            ready.mkdir()
            target = ready / "root.squashfs"
            run(
                ["mksquashfs", str(tree), str(target), "-quiet", "-no-progress", "-noappend"]
                + ["-comp", "lz4", "-all-root", "-mkfs-time", "0", "-all-time", "0", "-no-xattrs"]
            )
            os.chmod(target, 0o444)
            sha256 = hashlib.sha256(target.read_bytes()).hexdigest()
            (ready / "sha256").write_text(sha256 + "\n")
            _sync(target, ready / "sha256", ready)
            final = self._folder / digest
            if final.exists():
                shutil.rmtree(final)  # what is there was found incomplete or changed
            ready.rename(final)
            _sync(self._folder)
        return Image(digest, sha256, final / "root.squashfs")


def open_verified(image: Image) -> int:
    """A read-only descriptor of the image, its content compared with the recorded hash through that
    descriptor.

    Raises HostError when the file was changed since it was built.
    """
    descriptor = os.open(image.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with os.fdopen(os.dup(descriptor), "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != image.sha256:
            raise HostError(
                f"the image {image.path} is not the one that was built (sha256 {found[:16]}...)",
                fix=f"remove {image.path.parent}; it is built again",
            )
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _signature(path: Path) -> tuple[int, ...]:
    try:
        facts = path.stat()
    except OSError:
        return ()
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def _sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
