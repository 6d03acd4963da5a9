"""The hashes of an image file: taken when it is placed, compared before each boot.

Two are kept. SHA-256 is for people and other tools. A boot, which everybody waits for, compares
BLAKE3: just as strong, and a third of the work even where the processor has instructions for
SHA-256.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from reconcilers.facts import Image
from specs.errors import HostError

_CHUNK = 256 << 10  # bytes; what was read is still in the processor's cache when it is hashed


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


def _blake3() -> Callable[[], _Hash] | None:
    """None in an environment that an older version made: SHA-256 does the same, slower."""
    try:
        import blake3
    except ImportError:
        return None
    made: Callable[[], _Hash] = blake3.blake3
    return made


def hashes(path: Path) -> tuple[str, str]:
    """SHA-256 and BLAKE3 of a file, in hex, by reading it once. The latter is empty where it
    cannot be made. Raises OSError.
    """
    sha256, fast = hashlib.sha256(), _blake3()
    blake3 = fast() if fast is not None else None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _read_into(descriptor, *([sha256, blake3] if blake3 is not None else [sha256]))
    finally:
        os.close(descriptor)
    return sha256.hexdigest(), blake3.hexdigest() if blake3 is not None else ""


def open_verified(image: Image) -> int:
    """A read-only descriptor of the image, all its content compared with the recorded hash through
    that descriptor (blocking).

    Raises HostError when the file was changed since it was built, OSError.
    """
    descriptor = os.open(image.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fast = _blake3() if image.blake3 else None
        hashing, want = (fast(), image.blake3) if fast else (hashlib.sha256(), image.sha256)
        _read_into(descriptor, hashing)
        found = hashing.hexdigest()
        if found != want:
            raise HostError(
                f"the image {image.path} is not the one that was built "
                f"({'blake3' if fast else 'sha256'} {found[:16]}..., not {want[:16]}...)",
                fix=f"remove {image.path.parent}; it is built again",
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_into(descriptor: int, *hashing: _Hash) -> None:
    buffer = bytearray(_CHUNK)
    view, at = memoryview(buffer), 0
    while size := os.preadv(descriptor, [buffer], at):
        for each in hashing:
            each.update(view[:size])
        at += size
