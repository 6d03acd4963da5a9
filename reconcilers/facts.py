"""What was observed of one sandbox, as plain values.

`Unknown` is a value of its own: a fact that could not be read is never taken for an absent thing,
and nothing is removed or created on the strength of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reconcilers.qcow2 import most_bytes
from specs.reading import Reading

MIB = 1 << 20


@dataclass(frozen=True)
class Unknown:
    """A resource that could not be observed, and why."""

    why: str


@dataclass(frozen=True)
class Image:
    """A built root image; `sha256` and `blake3` (empty for one that an older version built) are
    those of the file, `digest` is of what went into it.
    """

    digest: str
    sha256: str
    path: Path
    blake3: str = ""


@dataclass(frozen=True)
class Disk:
    """A data disk. Path, format, owner and mode are those of its top layer, the one that is
    written; `beneath` are the frozen layers under it, bottom first.

    `size` is what the disk is to have, `made` what a VMM that opens it now sees, in bytes.
    `private` says that every owner and mode is as it must be: the controller's own, and nobody
    else's to read.
    """

    path: Path
    format: str
    size: int
    uid: int
    gid: int
    mode: int
    private: bool
    beneath: tuple[Path, ...] = ()
    made: int = 0

    @property
    def formats(self) -> tuple[str, ...]:
        """Of all its layers, bottom first: the lowest is raw, what lies on it are overlays."""
        return (*("qcow2" if index else "raw" for index in range(len(self.beneath))), self.format)

    @property
    def most_bytes(self) -> int:
        """How large the file of its top may become."""
        return self.size if self.format == "raw" else most_bytes(self.size)


@dataclass(frozen=True)
class Vmm:
    """A live VMM that our own launch record describes; `key` names the launch settings it was
    started with. `outdated`: its Boxfile has other ones by now. Its readings are then those of what
    it was started for.
    """

    pid: int
    start_time: int
    key: str
    frozen: bool
    readings: tuple[Reading, ...]
    outdated: bool = False


@dataclass(frozen=True)
class Guest:
    """A guest that answers over its channel. `data_bytes` and `network` are what it was told of its
    disk's size and of its addresses.
    """

    kernel: str
    boot_id: str
    data_bytes: int
    network: str = ""


@dataclass(frozen=True)
class Network:
    """The network of one sandbox. `present`: something of it is on the host.

    `readings` compare it with what the Boxfile asks for, none when that is no network. `for_guest`
    is what its guest has to be told; `shown` is for people.
    """

    present: bool = False
    readings: tuple[Reading, ...] = ()
    for_guest: str = ""
    shown: Mapping[str, str] = field(default_factory=dict)

    @property
    def fault(self) -> Reading | None:
        """The first reading that is not as wanted."""
        return next((reading for reading in self.readings if not reading.ok), None)


@dataclass(frozen=True)
class Observed:
    """Every resource of one sandbox. None means seen to be absent."""

    image: Image | Unknown | None = None
    uid: int | None = None
    cgroup: bool | Unknown = False
    disk: Disk | Unknown | None = None
    vmm: Vmm | Unknown | None = None
    network: Network | Unknown = Network()
    strays: tuple[int, ...] = ()
    guest: Guest | None = None
    # Why QEMU holds its virtual CPUs, in its own word (`io-error`, `paused`); empty when it runs.
    paused: str = ""
    runtime: bool = False
    had_disk: bool = False

    def unknown(self) -> tuple[str, ...]:
        """Why each unreadable resource could not be read."""
        parts = (
            ("image", self.image),
            ("cgroup", self.cgroup),
            ("disk", self.disk),
            ("network", self.network),
        )
        found = [f"{what}: {fact.why}" for what, fact in parts if isinstance(fact, Unknown)]
        if isinstance(self.vmm, Unknown):
            found.append(f"vmm: {self.vmm.why}")
        return tuple(found)

    @property
    def nothing_runs(self) -> bool:
        """Whether no VM is there, nor anything that was made for one but identity and disk."""
        if self.vmm is not None or self.cgroup is not False or self.strays or self.runtime:
            return False
        return isinstance(self.network, Network) and not self.network.present

    @property
    def faults(self) -> tuple[Reading, ...]:
        """Readings of the live VMM that differ from the policy."""
        if not isinstance(self.vmm, Vmm):
            return ()
        return tuple(reading for reading in self.vmm.readings if not reading.ok)
