"""The durable records as values, and their form in TOML.

Pure: no file is touched here, so that what a state file may hold can be tested without a disk. A
field that is missing or of another type makes the whole file unreadable; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from reconcilers import steps
from reconcilers.steps import Step
from specs.boxfile import Boxfile
from specs.plain import without_none

STATE_FORMAT = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """Everything durable that only we know about one sandbox.

    `spec` is the last good one, `source` the file it came from relative to the watched folder,
    `created` an ISO 8601 UTC time. `vanished_at` (seconds since the epoch) is when the file was
    last found missing. `held`: the prune guard keeps it until its file returns or a human confirms.
    `has_disk`: a data disk was made for it, so that one that is gone was lost.
    """

    name: str
    generation: int = 0
    spec: Boxfile | None = None
    spec_digest: str = ""
    source: str = ""
    uid: int | None = None
    gid: int | None = None
    created: str = ""
    vanished_at: float | None = None
    held: bool = False
    suspended: bool = False
    has_disk: bool = False


def after(record: Record, step: Step, uid: int | None) -> Record:
    """The record once `step` is done; `uid` is what a claimed identity turned out to be."""
    match step:
        case steps.ClaimIdentity():
            return replace(record, uid=uid, gid=uid)
        case steps.ReleaseIdentity():
            return replace(record, uid=None, gid=None)
        case steps.CreateDisk() | steps.ForkDisk() | steps.LaunchVmm():
            # Also a disk that was found and is now open: a first start may fail after it.
            return replace(record, has_disk=True)
        case steps.EraseDisk() | steps.SetDiskAside():
            return replace(record, has_disk=False)
    return record


@dataclass(frozen=True)
class Garbled:
    """A state file that cannot be understood, and why. It stays where it is until set aside."""

    path: Path
    why: str


@dataclass(frozen=True)
class FolderIdentity:
    """The watched folder that the inventory belongs to: device and inode of the resolved folder."""

    path: str
    device: int
    inode: int

    @property
    def identity(self) -> tuple[int, int]:
        return (self.device, self.inode)


def record_to_dict(record: Record) -> dict[str, Any]:
    """The record as TOML values. TOML has no null: what is None is left out."""
    plain: dict[str, Any] = {
        "format": STATE_FORMAT,
        "name": record.name,
        "generation": record.generation,
        "spec_digest": record.spec_digest,
        "source": record.source,
        "uid": record.uid,
        "gid": record.gid,
        "created": record.created,
        "vanished_at": record.vanished_at,
        "held": record.held,
        "suspended": record.suspended,
        "has_disk": record.has_disk,
        "spec": None if record.spec is None else record.spec.to_plain(),
    }
    result: dict[str, Any] = without_none(plain)
    return result


def record_from_dict(found: Mapping[str, Any], name: str) -> Record:
    """The record that `record_to_dict` wrote; raises ValueError for anything else."""
    if expect(found, "format", int) != STATE_FORMAT:
        raise ValueError(
            f"format {found['format']} is not {STATE_FORMAT}: written by another version"
        )
    if expect(found, "name", str) != name:
        raise ValueError(f"holds the record of {found['name']!r}")
    spec = optional(found, "spec", dict)
    return Record(
        name=name,
        generation=expect(found, "generation", int),
        # pydantic's ValidationError is a ValueError.
        spec=None if spec is None else Boxfile.model_validate(spec),
        spec_digest=expect(found, "spec_digest", str),
        source=expect(found, "source", str),
        uid=optional(found, "uid", int),
        gid=optional(found, "gid", int),
        created=expect(found, "created", str),
        vanished_at=optional(found, "vanished_at", float),
        held=expect(found, "held", bool),
        suspended=expect(found, "suspended", bool),
        has_disk=expect(found, "has_disk", bool),
    )


def folder_to_dict(folder: FolderIdentity) -> dict[str, Any]:
    return {"path": folder.path, "device": folder.device, "inode": folder.inode}


def folder_from_dict(found: Mapping[str, Any]) -> FolderIdentity:
    """The identity that `folder_to_dict` wrote; raises ValueError for anything else."""
    return FolderIdentity(
        path=expect(found, "path", str),
        device=expect(found, "device", int),
        inode=expect(found, "inode", int),
    )


def expect(found: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """The value of `key`, exactly of type `kind` (a bool is no int); raises ValueError."""
    if key not in found:
        raise ValueError(f"{key}: missing")
    value = found[key]
    if type(value) is not kind:
        raise ValueError(f"{key}: {kind.__name__} expected, found {type(value).__name__}")
    return value


def optional(found: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    return expect(found, key, kind) if key in found else None
