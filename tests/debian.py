"""A small Debian to build on, and the archive its apt installs from, without any network.

Both are made once from Debian's own packages and kept outside the source tree, under a name that is
the hash of what they are made from. The archive holds the packages below with what they need, in
the form of a real one, and its address is one that only a test's own network has.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.setup.freshroot import FreshRoot, fresh_root, sources
from tests.vm.harness import until

CACHE = Path("/var/cache/box/test-images")
SUITE = "bookworm"
# The first two are what builds install; with the others they are a layer of the examples' image.
PACKAGES = ("python3", "hello", "nodejs", "git", "curl", "ca-certificates")
ADDRESS, PORT = "198.51.100.10", 8080  # documentation's (RFC 5737), as in tests/vm/netlab.py

_DOWNLOAD = f"""
set -eu
apt-get -q update
apt-get -q -y --no-install-recommends --download-only install {" ".join(PACKAGES)}
mkdir /archive
mv /var/cache/apt/archives/*.deb /archive/
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/*
rm -rf /usr/share/doc /usr/share/man /usr/share/info /usr/share/locale
rm -f /etc/apt/sources.list.d/* /etc/apt/apt.conf.d/90host /etc/dpkg/dpkg.cfg.d/90test
rm -f /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/host-ca.crt
"""
# Debian's own key signs no archive of ours.
_SOURCES = f"deb [trusted=yes] http://{ADDRESS}:{PORT} {SUITE} main\n"


@dataclass(frozen=True)
class Debian:
    """`kept` is a root file system as a tar file, `archive` the folder its apt is served from."""

    kept: Path
    archive: Path

    def base(self, folder: Path) -> str:
        """The tar file as a Boxfile names it, from a folder that box may read images from."""
        target = folder / "debian.tar"
        try:
            os.link(self.kept, target)
        except OSError:  # another file system
            shutil.copyfile(self.kept, target)
        return f"rootfs:{target}"

    def serve(self, enter: Sequence[str]) -> contextlib.AbstractContextManager[None]:
        """Serve the archive in the network namespace that a command with this prefix is in."""
        return _served(self.archive, enter)


def debian() -> Debian:
    """From the cache, or made now (half a minute). Only root can make it.

    Raises CalledProcessError, RuntimeError.
    """
    made_from = [sources(SUITE).encode(), Path(__file__).read_bytes()]
    place = CACHE / f"{SUITE}-{hashlib.sha256(b'0'.join(made_from)).hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=CACHE, prefix=".making-") as scratch:
                ready = Path(scratch) / "ready"
                ready.mkdir()
                with fresh_root(SUITE, Path(scratch)) as root:
                    _make(root, ready)
                ready.rename(place)
    return Debian(place / "base.tar", place / "archive")


def _make(root: FreshRoot, ready: Path) -> None:
    done = root.run(_DOWNLOAD, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"no archive could be made:\n{done.stdout[-4000:]}")
    _archive(root.path / "archive", ready / "archive")
    (root.path / "archive").rmdir()
    (root.path / "etc/apt/sources.list").write_text(_SOURCES)
    command = ["tar", "--numeric-owner", "-C", str(root.path), "-cf", str(ready / "base.tar"), "."]
    subprocess.run(command, check=True, timeout=120)


def _archive(packages: Path, target: Path) -> None:
    """The layout of DebianRepository/Format in Debian's wiki."""
    pool, suite = target / "pool", target / "dists" / SUITE
    index = suite / "main/binary-amd64/Packages"
    index.parent.mkdir(parents=True)
    pool.mkdir()
    stanzas = []
    for each in sorted(packages.glob("*.deb")):
        fields = ["dpkg-deb", "--field", str(each)]
        control = subprocess.run(fields, capture_output=True, text=True, check=True).stdout
        content = each.read_bytes()
        # apt writes a colon of a version as %3a into a file's name
        kept = each.rename(pool / each.name.replace("%3a", "."))
        stanzas.append(
            f"{control.rstrip()}\nFilename: pool/{kept.name}\nSize: {len(content)}\n"
            f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
        )
    index.write_text("\n".join(stanzas))
    listed = index.read_bytes()
    (suite / "Release").write_text(
        f"Suite: {SUITE}\nCodename: {SUITE}\nDate: Thu, 01 Jan 2026 00:00:00 UTC\n"
        "Architectures: amd64\nComponents: main\nSHA256:\n"
        f" {hashlib.sha256(listed).hexdigest()} {len(listed)} main/binary-amd64/Packages\n"
    )


@contextlib.contextmanager
def _served(archive: Path, enter: Sequence[str]) -> Iterator[None]:
    web = [sys.executable, "-m", "http.server", "--bind", ADDRESS, "--directory", str(archive)]
    server = subprocess.Popen(
        [*enter, *web, str(PORT)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    look = f"import socket; socket.create_connection(('{ADDRESS}', {PORT}), 2)"

    def answers() -> bool:
        assert server.poll() is None, "the archive's server ended"
        return (
            subprocess.run(
                [*enter, sys.executable, "-c", look], stderr=subprocess.DEVNULL
            ).returncode
            == 0
        )

    try:
        until(answers, 20, "the archive is served")
        yield
    finally:
        server.kill()
        server.wait()
