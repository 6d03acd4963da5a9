"""Where everything of one instance lives on disk.

Pure path arithmetic, so that every room agrees on a location without asking another room. It must
not touch the file system: whether a path exists is the business of whoever observes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """Paths of one `$BOX_HOME`. `home` is absolute; `runtime` is the instance's own runtime
    directory.
    """

    home: Path
    runtime: Path
    instance: str

    @property
    def boxes(self) -> Path:
        return self.home / "boxes"

    @property
    def policy(self) -> Path:
        return self.home / "policy.toml"

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    @property
    def socket(self) -> Path:
        return self.home / "box.sock"

    @property
    def lock(self) -> Path:
        return self.home / "controller.lock"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def observed(self) -> Path:
        return self.home / "observed"

    @property
    def images(self) -> Path:
        return self.home / "images"

    @property
    def kernels(self) -> Path:
        return self.home / "kernels"

    @property
    def transfers(self) -> Path:
        """Archives on their way into or out of a sandbox, each for as long as one command."""
        return self.home / "transfers"

    @property
    def builds(self) -> Path:
        """What the steps of builds left, each on a disk of its own."""
        return self.home / "builds"

    @property
    def all_disks(self) -> Path:
        return self.home / "disks"

    @property
    def set_aside(self) -> Path:
        """Disks of deleted sandboxes, each in a folder named for the sandbox and the moment it was
        deleted.
        """
        return self.home / "disks" / ".deleted"

    def disks(self, name: str) -> Path:
        return self.all_disks / name

    def sandbox_runtime(self, name: str) -> Path:
        """Sockets and launch record of one sandbox; mode 0700, gone with its VMM."""
        return self.runtime / name

    def qmp_socket(self, name: str) -> Path:
        return self.sandbox_runtime(name) / "qmp.sock"

    def console_socket(self, name: str) -> Path:
        return self.sandbox_runtime(name) / "con.sock"

    def agent_socket(self, name: str) -> Path:
        return self.sandbox_runtime(name) / "agent.sock"

    def mount_socket(self, name: str, index: int) -> Path:
        """Where a mount's helper listens, for the moment until it is connected."""
        return self.sandbox_runtime(name) / f"fs{index}.sock"

    def launch_record(self, name: str) -> Path:
        return self.sandbox_runtime(name) / "launch.json"

    def console_log(self, name: str) -> Path:
        return self.observed / name / "console.log"
