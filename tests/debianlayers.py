"""Debian's python3, nodejs, git and curl as the layers of an image, made of Debian's own packages.

The lower layer is the small Debian of `tests/debian.py`, the upper one what its archive's packages
hold. They are unpacked, not installed: no script of theirs has run, and what one would have made
and is needed here, the bundle of certificates, is made here.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tests.debian import Debian

BUNDLE = "etc/ssl/certs/ca-certificates.crt"
# Moved below usr/ in every Debian since 12; packages of that time still name the links.
_MERGED = ("bin", "lib", "lib64", "sbin")
_UNUSED = ("usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/include/")
# Hundreds of names; of them what a clone and a commit call.
_GIT_CORE = "usr/lib/git-core"
_GIT = ("git", "git-remote-http", "git-remote-https", "git-sh-setup")


def layers(made: Debian) -> tuple[bytes, bytes]:
    """Base and tools, uncompressed; takes some seconds. Raises CalledProcessError."""
    return made.kept.read_bytes(), _unpacked(sorted((made.archive / "pool").glob("*.deb")))


def _unpacked(packages: list[Path]) -> bytes:
    out, certificates, seen = io.BytesIO(), [], set()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tools:
        for package in packages:
            for info, content in _members(package):
                if info.name.startswith("usr/share/ca-certificates/"):
                    certificates.append(content)
                if info.name not in seen:
                    seen.add(info.name)
                    tools.addfile(info, io.BytesIO(content))
        bundle = b"".join(certificates)
        info = tarfile.TarInfo(BUNDLE)
        info.size = len(bundle)
        tools.addfile(info, io.BytesIO(bundle))
    return out.getvalue()


def _members(package: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """What a package holds, by the names that its files have in a Debian with a merged /usr."""
    shown = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True, timeout=60
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(shown)) as archive:
        for info in archive:
            file = archive.extractfile(info) if info.isreg() else None
            info.name = _merged(info.name)
            if info.islnk():
                info.linkname = _merged(info.linkname)
            if info.name and not info.isdir() and _wanted(info.name):
                yield info, file.read() if file else b""


def _wanted(name: str) -> bool:
    folder, _, last = name.rpartition("/")
    return last in _GIT if folder == _GIT_CORE else not name.startswith(_UNUSED)


def _merged(name: str) -> str:
    name = name.removeprefix("./").strip("/")
    return f"usr/{name}" if name.partition("/")[0] in _MERGED else name
