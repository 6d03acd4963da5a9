"""The image that comes with box: the host's own busybox, and what programs expect around it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from reconcilers.process import run
from specs.errors import HostError

BUSYBOX = Path("/bin/busybox")
# Part of the digest: raise it whenever the tree below changes.
_RECIPE = b"builtin:busybox 1"

_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = "root:x:0:\nnogroup:x:65534:\n"
# Mount points the agent fills in, and folders every program expects. Mode, path.
_FOLDERS = (
    (0o755, "bin"),
    (0o755, "sbin"),
    (0o755, "usr"),
    (0o755, "usr/bin"),
    (0o755, "usr/sbin"),
    (0o755, "etc"),
    (0o755, "var"),
    (0o755, "proc"),
    (0o755, "sys"),
    (0o755, "dev"),
    (0o755, "run"),
    (0o755, "data"),
    (0o755, "mnt"),
    (0o700, "root"),
    (0o1777, "tmp"),
)


def wanted_digest() -> str:
    """The digest the image must have on this host. Raises HostError."""
    try:
        content = BUSYBOX.read_bytes()
    except OSError as error:
        raise HostError(
            f"{BUSYBOX} is missing ({error.strerror})", fix="apt-get install busybox-static"
        ) from error
    return hashlib.sha256(_RECIPE + b"\0" + content).hexdigest()


def busybox_tree(tree: Path) -> None:
    """Make the folder `tree` the root of the image. Raises HostError, CommandError, OSError."""
    tree.mkdir()
    for mode, folder in _FOLDERS:
        (tree / folder).mkdir()
        (tree / folder).chmod(mode)
    shutil.copyfile(BUSYBOX, tree / "bin/busybox")
    (tree / "bin/busybox").chmod(0o755)
    for applet in run([str(BUSYBOX), "--list-full"]).split():
        link = tree / applet
        if link.parent.is_dir() and not link.exists():
            link.symlink_to("/bin/busybox")
    if not (tree / "bin/sh").is_symlink():
        raise HostError("this busybox has no shell", fix="apt-get install busybox-static")
    (tree / "etc/passwd").write_text(_PASSWD)
    (tree / "etc/group").write_text(_GROUP)
    (tree / "etc/resolv.conf").write_text("")  # with a read-only root, a place for the guest's own
    (tree / "etc/hostname").write_text("box\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
