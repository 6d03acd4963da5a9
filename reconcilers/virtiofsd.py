"""One mount as the command line of whichever virtiofsd the host has. Pure.

Debian 12 has the one written in C, in qemu-system-common; Debian 13 the one in Rust, in a package
of its own, with other options. Both get a listening socket and the directory as their jail shows
it, and change their root into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reconcilers.confinement.policy import SHARED_PATH

SOCKET_FD = 3
RUST, C = Path("/usr/libexec/virtiofsd"), Path("/usr/lib/qemu/virtiofsd")
FIX = "apt-get install virtiofsd (Debian 13) or qemu-system-common (Debian 12)"

# What either keeps for itself when it is not told otherwise, in its own spelling
_DEFAULT = ("chown", "dac_override", "fowner", "fsetid", "setgid", "setuid", "mknod", "setfcap")


@dataclass(frozen=True)
class Virtiofsd:
    """A binary and which of the two it is."""

    binary: Path
    rust: bool

    def command(self, kept: frozenset[str]) -> tuple[str, ...]:
        """Serves SHARED_PATH on the listening socket SOCKET_FD until the VMM closes its end, with
        the capabilities `kept`.

        cache=none: the guest sees at once what the host writes, and holds no file open that it
        does not use. No extended attributes: file capabilities are among them.
        """
        given_up = (name for name in _DEFAULT if f"CAP_{name.upper()}" not in kept)
        modcaps = ":".join(f"-{name}" for name in given_up)
        start = (str(self.binary), f"--fd={SOCKET_FD}")
        if self.rust:
            return (
                *start, f"--shared-dir={SHARED_PATH}", "--sandbox=chroot", "--cache=never",
                "--inode-file-handles=never", "--rlimit-nofile=0", f"--modcaps={modcaps}",
                "--log-level=error",
            )  # fmt: skip
        return (
            *start, "-f", "--rlimit-nofile=0", "-o", f"source={SHARED_PATH}",
            "-o", "sandbox=chroot", "-o", "cache=none", "-o", "no_xattr",
            "-o", f"modcaps={modcaps}", "-o", "log_level=err",
        )  # fmt: skip


def find() -> Virtiofsd | None:
    """The one of this host, if any."""
    for binary, rust in ((RUST, True), (C, False)):
        if binary.is_file():
            return Virtiofsd(binary, rust)
    return None
