"""What every VMM backend offers: the translation of a Boxfile into one command line, and nothing
else.

A backend starts nothing, reads nothing and never imports a sibling. Descriptors keep the numbers
below in every backend, so that whoever launches need not know which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specs.boxfile import Boxfile
from specs.mountpaths import MOUNTS_MAX

QMP_FD, CONSOLE_FD, AGENT_FD, ROOT_FD, DATA_FD, TAP_FD = 3, 4, 5, 6, 7, 8
MOUNT_FD = 9  # of the first mount; the others follow, in the order of the Boxfile
LAYER_FD = MOUNT_FD + MOUNTS_MAX  # of the lowest frozen layer of the data disk; the others follow
ARCHIVE_FD = 127  # of a transfer's archive, beyond every layer
BASE_FD = 128  # the top of the disk that another one is compared with; its layers follow
KERNEL_PATH, INITRD_PATH = "/kernel", "/initrd"


def mount_tag(index: int) -> str:
    """What the guest's kernel calls mount number `index`."""
    return f"mount{index}"


@dataclass(frozen=True)
class HostFacts:
    """What a backend may know of the host. `tsc_khz` is None when the host does not say."""

    binary: Path | None
    version: tuple[int, int] | None
    tsc_khz: int | None


@dataclass(frozen=True)
class VmmCommand:
    """A VMM's argv; argv[0] is the absolute host path of its binary."""

    argv: tuple[str, ...]


class Backend(Protocol):
    """One VMM. `docs/backends.md` explains how to add another."""

    name: str

    def check(self, box: Boxfile, host: HostFacts) -> tuple[str, ...]:
        """What stands against running this Boxfile here, each with its fix; empty when nothing
        does.
        """

    def command(
        self,
        box: Boxfile,
        accel: str,
        marker: str,
        host: HostFacts,
        layers: tuple[str, ...] = ("raw",),
        archive: str = "",
        base: tuple[str, ...] = (),
        building: bool = False,
    ) -> VmmCommand:
        """The command line of this Boxfile's VMM; `marker` names it for who looks for strays,
        `layers` are the formats of its data disk, bottom first. With `archive`, `read` or
        `written`, there is the disk of a transfer besides; with `base`, formats as well, one more
        disk. `building`: what the guest writes to its root goes to the data disk.
        """

    def merging(
        self, marker: str, host: HostFacts, layers: tuple[str, ...], into: int
    ) -> VmmCommand:
        """The command line of a VMM without any guest, which only takes what the layers above
        number `into` hold, the last one being the node `data`, into that one, the node `layerN`.
        """
