"""The Boxfile as a value: every field, its type, its default and its limits.

Documentation of the fields is `docs/` and the JSON Schema made from this module. It must not read
files or know line numbers: `specs.parse` does the first half of the work and turns errors into
problems.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    Tag,
)

from specs.blueprint import Blueprint, RunLines
from specs.egress import ENTRIES_MAX, parse_entry
from specs.errors import BadName, NotAllowed
from specs.fields import Line, Lines, Part, ShortLine, Text
from specs.imagename import parse_image
from specs.mountpaths import MOUNTS_MAX, check_guest_path, check_host_path
from specs.names import NAME_PATTERN, check_name
from specs.packages import Packages
from specs.text import visible

ENV_MAX = 1000  # variables; execve(2) refuses far more, the guest's argument area is 2 MiB
LABELS_MAX = 64
RAM_MIB_MAX = 16_777_216  # 16 TiB, beyond any VMM; keeps sums within 64 bits
DATA_MIB_MAX = 16_777_216  # ext4 with 4 KiB blocks ends at 16 TiB
TIMEOUT_MAX = 2_147_483  # seconds; in milliseconds it fits the protocol's signed 32 bits


class State(StrEnum):
    running = "running"
    stopped = "stopped"


class Backend(StrEnum):
    qemu = "qemu"
    firecracker = "firecracker"
    krun = "krun"
    podman = "podman"


class Accel(StrEnum):
    auto = "auto"
    kvm = "kvm"
    tcg = "tcg"


class Isolation(StrEnum):
    strict = "strict"
    standard = "standard"


class Network(StrEnum):
    none = "none"
    bridge = "bridge"


class Restart(StrEnum):
    always = "always"
    never = "never"


class Pull(StrEnum):
    missing = "missing"
    always = "always"


class PackageManager(StrEnum):
    apk = "apk"
    apt = "apt"
    dnf = "dnf"


class OnDelete(StrEnum):
    keep = "keep"
    erase = "erase"


class MountMode(StrEnum):
    ro = "ro"
    rw = "rw"


def _sandbox_name(name: str) -> str:
    try:
        return check_name(name)
    except BadName as error:
        raise NotAllowed(error.message, error.fix) from None


def _environment_name(name: str) -> str:
    if not name or "=" in name or not name.isascii() or not name.isprintable() or " " in name:
        raise NotAllowed("not a variable name", "use printable ASCII without spaces and =")
    return name


def _image(text: str) -> str:
    parse_image(text)
    return text


def _destination(text: str) -> str:
    parse_entry(text)
    return text


Name = Annotated[StrictStr, AfterValidator(_sandbox_name)]
Image = Annotated[Line, AfterValidator(_image)]
EnvName = Annotated[StrictStr, StringConstraints(max_length=256), AfterValidator(_environment_name)]
LabelKey = Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
EgressEntry = Annotated[StrictStr, StringConstraints(max_length=200), AfterValidator(_destination)]
# Two types told apart beforehand, so that a mistake in a list is not also "not none or all". What
# has a colon is an entry that should stand in a list.
Egress = Annotated[
    Annotated[Literal["none", "all"], Tag("word")]
    | Annotated[tuple[EgressEntry, ...], Field(max_length=ENTRIES_MAX), Tag("list")],
    Discriminator(
        lambda value: "list" if isinstance(value, list | tuple) or ":" in str(value) else "word"
    ),
]


class Data(Part):
    """The one thing that persists, at /data. It grows when `size_mib` does, and never shrinks."""

    size_mib: Annotated[StrictInt, Field(ge=16, le=DATA_MIB_MAX)] = 1024
    on_delete: OnDelete = OnDelete.keep


class Mount(Part):
    """A host directory shown in the guest."""

    host: Annotated[Line, AfterValidator(check_host_path)]
    guest: Annotated[Line, AfterValidator(check_guest_path)]
    mode: MountMode = MountMode.ro


class Boxfile(Part):
    """One sandbox as declared. Field meanings are the `description`s, shown by `box schema`."""

    name: Name = Field(
        description="The sandbox. Comes from the file name; when written, it must be the same.",
        json_schema_extra={"pattern": f"^{NAME_PATTERN}$"},
    )
    state: State = Field(
        State.running, description="stopped keeps data, image and identity, without a VM."
    )
    base: Image = Field(
        "builtin:busybox",
        description="What the VM starts from: an image in a registry, oci-archive:PATH, "
        "rootfs:PATH (a tar file or a folder), or builtin:busybox, which works offline.",
    )
    pull: Pull = Field(
        Pull.missing,
        description="missing: what the base means is looked up once. always: before each start of "
        "the VM, which needs the registry then.",
    )
    fork_of: Name | None = Field(
        None,
        description="The sandbox whose /data this one begins with, copied on write. Counts only "
        "while it has no disk of its own.",
    )
    backend: Backend | None = Field(
        None, description="What boots the VM. Left out: the best one this host can run."
    )
    accel: Accel = Field(
        Accel.auto,
        description="auto uses KVM when it really works. Under strict isolation, software "
        "emulation (tcg) runs only when it is written here.",
    )
    isolation: Isolation = Field(
        Isolation.strict,
        description="strict: the VMM runs as a host user id of this sandbox alone. standard: as "
        "the invoking user; for root, as one unprivileged id shared by root's standard sandboxes.",
    )
    cpus: Annotated[StrictInt, Field(ge=1, le=16)] = Field(2, description="Virtual CPUs.")
    ram_mib: Annotated[StrictInt, Field(ge=128, le=RAM_MIB_MAX)] = Field(
        512, description="Guest RAM in MiB."
    )
    network: Network = Field(
        Network.none,
        description="none: no network device at all. bridge: one card behind rules of its own.",
    )
    egress: Egress = Field(
        "all",
        description="What a bridged sandbox may reach: none, all (but nothing private and nothing "
        "of the host), or a list of IP:port, CIDR:port and [IPv6]:port.",
    )
    readonly: StrictBool = Field(
        False, description="Read-only root; /tmp, /run and /data stay writable."
    )
    timeout_seconds: Annotated[StrictInt, Field(ge=0, le=TIMEOUT_MAX)] = Field(
        0, description="Per command; everything it started is killed. 0 is unlimited."
    )
    warm: Annotated[StrictInt, Field(ge=0, le=8)] = Field(
        0, description="VMs kept ready for box run."
    )
    warmup: Lines = Field((), description="Shell lines run once in each warm VM.")
    packages: Packages = Field((), description="Packages installed when the image is built.")
    run: RunLines = Field((), description="Further build steps, as shell lines.")
    pkgmgr: PackageManager | None = Field(None, description="Left out: inferred from the base.")
    env: Annotated[dict[EnvName, Text], Field(max_length=ENV_MAX)] = Field(
        {}, description="Environment of every command."
    )
    mounts: Annotated[tuple[Mount, ...], Field(max_length=MOUNTS_MAX)] = Field(
        (), description="Host directories shown in the guest; ro unless mode says rw."
    )
    data: Data = Field(Data(), description="The disk at /data, the only thing that persists.")
    blueprint: Blueprint | None = Field(None, description="Users, files and commands of the image.")
    seccomp: Line | None = Field(
        None, description="A file with system calls; intersected with the built-in list."
    )
    restart: Restart = Field(Restart.always, description="When the VM dies unasked.")
    labels: Annotated[dict[LabelKey, ShortLine], Field(max_length=LABELS_MAX)] = Field(
        {}, description="For selection; no effect on the sandbox."
    )

    def to_plain(self) -> dict[str, Any]:
        """JSON-ready fields that differ from their defaults, in the order of declaration."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def digest(self) -> str:
        """SHA-256, in hex, of the canonical JSON of `to_plain()`.

        Defaults are left out, so a later field with a default changes no existing digest.
        """
        canonical = json.dumps(
            self.to_plain(), sort_keys=True, separators=(",", ":"), ensure_ascii=True
        )
        return hashlib.sha256(canonical.encode()).hexdigest()


# Fields refused as soon as they hold anything, and fields where only some values work so far.
WHOLE_FIELDS = frozenset({"warm", "warmup", "seccomp"})
_BUILT_VALUES: Mapping[str, tuple[str, ...]] = {
    "backend": ("qemu",),
}
_KNOWN_VALUES: Mapping[str, tuple[object, ...]] = {
    "backend": tuple(Backend),
}


def unsupported(field: str, value: object) -> str:
    """Why this written value of a top-level field cannot be honoured yet; empty when it can."""
    if field in WHOLE_FIELDS:
        empty = value is None or value == 0 or value in ((), [], {}, "")
        return "" if empty else "not supported yet"
    built = supported_values(field)
    if not built or not isinstance(value, str) or value in built:
        return ""
    if not value or value not in _KNOWN_VALUES.get(field, (value,)):
        return ""  # a value that no version knows is the model's to refuse
    return f"{visible(value, 60)} is not supported yet"


def supported_values(field: str) -> tuple[str, ...]:
    """The values that work so far of a field of which others are planned; else empty."""
    return _BUILT_VALUES.get(field, ())


def without_unsupported(field: str) -> bool:
    """Whether a field works only by being left out."""
    return field in WHOLE_FIELDS
