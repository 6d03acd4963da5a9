"""A file of the host that a Boxfile names: opened once, hashed, and seen to stay what it was."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import signal
import stat
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

from reconcilers.images.fetch import LAYER_MAX
from reconcilers.images.tree import BadImage
from reconcilers.process import GivenUp, feed
from specs.errors import CommandError, HostError
from specs.text import visible

_CHUNK = 1 << 20
_ZSTD_SECONDS = 3600.0
# For one xz file: a window of 128 MiB, as much as zstd takes by itself. xz -9 needs half of that.
XZ_MEMORY = 160 << 20
_GZIP, _XZ, _BZIP2, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd"


class LocalFile:
    """An open regular file; `path` leads to it without links, as it was when it was opened."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path
        self._was = self._facts()

    @classmethod
    def opened(cls, directory: int, name: str, path: str) -> LocalFile:
        """The file `name` in `directory`. Raises OSError for anything but a regular file."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        # Looked at before it is opened: a device may act on being opened.
        kind = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if not stat.S_ISREG(kind):
            what = "it is a link: name the file itself" if stat.S_ISLNK(kind) else "it is no file"
            raise OSError(errno.EINVAL, what, name)
        descriptor = os.open(name, flags, dir_fd=directory)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is no file", name)
            return cls(descriptor, f"{path.rstrip('/')}/{name}")
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        os.close(self._descriptor)

    def sha256(self, stop: threading.Event) -> str:
        """Of all its bytes. Raises BadImage when they change meanwhile, GivenUp."""
        digest, at = hashlib.sha256(), 0
        while part := os.pread(self._descriptor, _CHUNK, at):
            _go_on(stop)
            digest.update(part)
            at += len(part)
        self.unchanged()
        return digest.hexdigest()

    def unchanged(self) -> None:
        """Raises BadImage when it is not what it was when it was opened."""
        if self._facts() != self._was:
            raise BadImage(f"{self.path} changed while it was read")

    def reader(self) -> BinaryIO:
        """Its bytes from the beginning, through a descriptor of its own."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.fdopen(os.dup(self._descriptor), "rb")

    def _facts(self) -> tuple[int, ...]:
        now = os.fstat(self._descriptor)
        return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def uncompressed(file: LocalFile, target: Path, stop: threading.Event) -> BinaryIO:
    """The file itself, or `target` with what it was compressed from. Raises BadImage, OSError."""
    raw = file.reader()
    try:
        magic = raw.read(6)
        raw.seek(0)
        if magic.startswith(_ZSTD):
            _by_zstd(raw, target, stop)
            raw.close()
            return open(target, "rb")  # the caller's to close
        unpacked = _unpacked(raw, magic)
        if unpacked is None:
            return raw
        size = 0
        with open(target, "xb") as out:
            try:
                while part := unpacked.read(_CHUNK):
                    _go_on(stop)
                    size += len(part)
                    if size > LAYER_MAX:
                        raise BadImage(f"it unpacks to more than {LAYER_MAX >> 30} GiB")
                    out.write(part)
            except (EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                raise BadImage(f"it cannot be unpacked: {error}") from error
            except gzip.BadGzipFile as error:
                raise BadImage(f"it cannot be unpacked: {error}") from error
        with suppress(OSError):
            raw.close()
        return open(target, "rb")  # the caller's to close
    except BaseException:
        raw.close()
        raise


def _unpacked(raw: BinaryIO, magic: bytes) -> BinaryIO | None:
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if magic.startswith(_XZ):
        return _Xz(raw)  # type: ignore[return-value]
    if magic.startswith(_BZIP2):
        return bz2.BZ2File(raw)  # type: ignore[return-value]
    return None


class _Xz:
    """What an xz file was made from. The standard library's own reader takes as much memory as the
    file says that it needs, which may be 4 GiB for a few kilobytes.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._begin()

    def _begin(self) -> None:
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none at the end. Raises LZMAError, EOFError where it breaks off."""
        while True:
            if self._stream.eof:
                rest = self._stream.unused_data
                while not (rest := rest.lstrip(b"\0")):  # padding; another stream may follow
                    if not (rest := self._raw.read(_CHUNK)):
                        return b""
                self._begin()
                part = self._stream.decompress(rest, size)
            elif self._stream.needs_input:
                if not (more := self._raw.read(_CHUNK)):
                    raise EOFError("it breaks off")
                part = self._stream.decompress(more, size)
            else:
                part = self._stream.decompress(b"", size)
            if part:
                return part


def _by_zstd(raw: BinaryIO, target: Path, stop: threading.Event) -> None:
    """Python can do it from 3.14 on. The program gets the bytes, not the name of the file."""

    def write(out: IO[bytes]) -> None:
        while part := raw.read(_CHUNK):
            _go_on(stop)
            out.write(part)

    limit = ["prlimit", f"--fsize={LAYER_MAX}", "--", "setpriv", "--pdeathsig", "KILL", "--"]
    try:
        feed([*limit, "zstd", "-d", "-q", "-o", str(target)], write, timeout=_ZSTD_SECONDS)
    except CommandError as error:
        if error.status == -signal.SIGXFSZ:
            raise BadImage(f"it unpacks to more than {LAYER_MAX >> 30} GiB") from error
        if "setpriv: failed to execute zstd" in error.last_lines:
            raise HostError("zstd is not installed", fix="apt-get install zstd") from error
        if "No space left on device" in error.last_lines:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
        raise BadImage(f"it cannot be unpacked: {visible(error.last_lines, 300)}") from error


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise GivenUp("the image is not wanted any more")
