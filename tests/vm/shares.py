"""Host directories and the sandboxes that share them, for the tests of mounts."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vm.harness import TINY, Home, home_with_controller

OWNER, GROUP, STRANGER = 21234, 21235, 24321


def boxfile(*mounts: tuple[Path | str, str, str], more: str = "") -> str:
    lines = "".join(
        f'- {{host: "{host}", guest: {guest}, mode: {mode}}}\n' for host, guest, mode in mounts
    )
    return f"{TINY}{more}mounts:\n{lines}"


def owned(path: Path, mode: int, text: str | None = None, uid: int = OWNER) -> Path:
    """A file with this text, or a folder, with an owner of its own."""
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    os.chown(path, uid, GROUP if uid == OWNER else uid)
    path.chmod(mode)
    return path


class Shares:
    """A read-only and a writable directory, and sandboxes that have them."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home = home
        self.ro = owned(folder / "ro", 0o755)
        owned(self.ro / "text", 0o644, "read me\n")
        owned(self.ro / "secret", 0o600, "of a stranger\n", uid=STRANGER)
        self.rw = owned(folder / "rw", 0o700)
        owned(self.rw / "private", 0o600, "of the owner\n")
        (self.ro / "absolute").symlink_to("/etc/shadow")
        (self.ro / "relative").symlink_to("../rw/private")
        (self.ro / "up").symlink_to("../../../../../../../../etc/shadow")

    def start(self, name: str, more: str = "") -> None:
        text = boxfile((self.ro, "/mnt/ro", "ro"), (self.rw, "/mnt/rw", "rw"), more=more)
        self.home.put(name, text)
        self.home.ready(name)

    def sh(self, script: str, name: str = "oak") -> subprocess.CompletedProcess[bytes]:
        return self.home.run(name, "sh", "-c", script, check=False)

    def delete(self, name: str) -> None:
        """By name, so that many in a short time are not taken for an accident."""
        self.home.box("delete", name)
        self.home.nothing_left(name)

    def helpers(self, name: str = "oak") -> list[dict[str, Any]]:
        record = json.loads((self.home.runtime / name / "launch.json").read_text())
        found: list[dict[str, Any]] = record["helpers"]
        return found


@contextlib.contextmanager
def made(folder: Path) -> Iterator[Shares]:
    """Its directories lie beside the home, which nobody may share."""
    with home_with_controller(folder) as home:
        yield Shares(home, folder)


def helper_processes(home: Home) -> set[int]:
    """Every virtiofsd in the groups of this home, which come and go meanwhile."""
    found = set()
    for folder in (each for group in home.cgroups() for each, _, _ in os.walk(group)):
        with contextlib.suppress(OSError):
            for pid in map(int, Path(folder, "cgroup.procs").read_text().split()):
                with contextlib.suppress(OSError):
                    if "virtiofsd" in os.readlink(f"/proc/{pid}/exe"):
                        found.add(pid)
    return found
