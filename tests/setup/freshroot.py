"""A Debian as small as Debian gets, to set the project up in: nothing but apt and its needs.

The root is made once per suite and mirror and kept outside the source tree; each use gets a copy.
All mounts live in a namespace of their own and vanish with its last process. This file must not
know what is tested inside.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.vm.harness import PATIENCE

CACHE = Path("/var/cache/box/test-roots")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
HOST_CA = Path("/etc/ssl/certs/ca-certificates.crt")
CA_INSIDE = "/etc/host-ca.crt"

# $1 is the root, the rest a command. /dev and /sys are the host's: making nodes needs powers a
# container may lack, and `box doctor` is to see the real cgroups. No chroot(2): in one nobody may
# make a user namespace (unshare(2), EPERM).
ENTER = """
set -e
root=$1; shift
mount --bind "$root" "$root" # pivot_root(2) refuses a root that is no mount point
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
cd "$root"
pivot_root . .
umount -l . # the host's root, which now lies over the new one
cd /
exec "$@"
"""


def host_mirrors() -> tuple[str, str]:
    """(Debian's archive, Debian's security archive) as this host's apt reaches them."""
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    plain = [uri.rstrip("/") for uri in listing]
    archive = next((u for u in plain if u.endswith("debian")), "")
    assert archive, f"apt on this host knows no Debian archive: {sorted(set(plain))}"
    security = next((u for u in plain if u.endswith("debian-security")), f"{archive}-security")
    return archive, security


def sources(suite: str) -> str:
    archive, security = host_mirrors()
    places = ((archive, suite), (archive, f"{suite}-updates"), (security, f"{suite}-security"))
    return "".join(f"deb [signed-by={KEYRING}] {uri} {name} main\n" for uri, name in places)


def apt_settings() -> list[str]:
    """How this host's apt gets out: proxies, and date checks where its mirror is a frozen one."""
    dump = subprocess.run(
        ["apt-config", "dump"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    wanted = re.compile(r"Acquire::((https?|ftp)::Proxy|Check-|Retries|ForceIPv)")
    return [line for line in dump.splitlines() if wanted.match(line)]


def minimal_root(suite: str) -> Path:
    """The pristine root of a suite, from the cache or made now. Raises CalledProcessError."""
    text, settings = sources(suite), apt_settings()
    key = hashlib.sha256("\n".join(["1", suite, text, *settings]).encode()).hexdigest()[:16]
    root = CACHE / f"{suite}-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f".{suite}.lock", "w") as lock, ExitStack() as held:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the lab's image, made at the same time, begins with one
        if root.is_dir():
            return root
        scratch = held.enter_context(tempfile.TemporaryDirectory(dir=CACHE, prefix=".making-"))
        source_list = Path(scratch) / "sources.list"
        source_list.write_text(text)
        made = Path(scratch) / "root"
        options = [f"--aptopt={line}" for line in settings]
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", *options]
            + [suite, str(made), str(source_list)],
            check=True,
            timeout=600,
        )
        (made / "etc/apt/apt.conf.d/90host").write_text("".join(f"{line}\n" for line in settings))
        made.rename(root)
    return root


class FreshRoot:
    """One throw-away copy; `run` enters it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, command: str, *, timeout: float) -> subprocess.CompletedProcess[str]:
        """A shell line inside, as root, with a clean environment; output is merged into stdout."""
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
            + ["sh", "-c", ENTER, "enter", str(self.path), "/bin/sh", "-c", command],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout * PATIENCE,
        )

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if (name.startswith("PIP_") and name != "PIP_FIND_LINKS")
            or name.lower() in ("http_proxy", "https_proxy", "no_proxy")
        }
        if (self.path / CA_INSIDE.lstrip("/")).exists():
            kept["PIP_CERT"] = CA_INSIDE
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {**kept, "PATH": system, "HOME": "/root", "LANG": "C.UTF-8"}


@contextmanager
def fresh_root(suite: str, parent: Path) -> Iterator[FreshRoot]:
    """A copy below `parent` that can reach what this host reaches; removed at the end."""
    path = parent / f"root-{suite}"
    subprocess.run(
        ["cp", "-a", "--reflink=auto", str(minimal_root(suite)), str(path)], check=True, timeout=300
    )
    try:
        for name in ("etc/resolv.conf", "etc/hosts", "etc/pip.conf"):
            if Path("/", name).exists():
                shutil.copyfile(Path("/", name), path / name)
        if HOST_CA.exists():
            shutil.copyfile(HOST_CA, path / CA_INSIDE.lstrip("/"))
        # The copy is thrown away: waiting for the disk after every package would only cost time.
        (path / "etc/dpkg/dpkg.cfg.d/90test").write_text("force-unsafe-io\n")
        yield FreshRoot(path)
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", str(path)], timeout=300)
