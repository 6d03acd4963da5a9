"""The readings that only the launch can give, because /proc shows them to nobody later.

Made once per VMM, kept in its launch record, looked up by readback. It must not read the host
beyond the descriptors of the launch itself and the kernel's Landlock version.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from reconcilers.confinement import procfile, syscalls
from reconcilers.confinement.document import Document
from reconcilers.confinement.securebits import SECUREBITS
from specs.reading import Reading

SECUREBITS_KEY = ("securebits", "securebits")
PDEATHSIG_KEY = ("session", "death signal")
LANDLOCK_KEY = ("landlock", "rules")
MOUNTS_KEY = ("root", "mounts")
MOUNT_IDS_KEY = ("root", "mount ids")
FILES_KEY = ("descriptors", "files")
BINARY_KEY = ("exec", "binary")
FLAGS = ("ro", "rw", "nosuid", "nodev", "noexec")
PROGRAM_KEY = ("seccomp", "program sha256")
FILTERS_KEY = ("seccomp", "filters")
KEYS = (
    SECUREBITS_KEY,
    PDEATHSIG_KEY,
    LANDLOCK_KEY,
    MOUNTS_KEY,
    FILES_KEY,
    BINARY_KEY,
    PROGRAM_KEY,
    FILTERS_KEY,
)


def held_files(descriptors: Iterable[tuple[int, int]]) -> str:
    """The regular files and devices among them: "file 8:1:77, device 1:3", sorted."""
    kinds = {procfile.file_kind(os.fstat(outside)) for _, outside in descriptors}
    return ", ".join(f"{kind} {at}" for kind, at in sorted(kinds) if kind in ("file", "device"))


def mount_table(document: Document, *, kvm_at: str) -> str:
    """What the VMM's /proc/PID/mountinfo must show, as a digest of paths and flags.

    `kvm_at` is the mount that shows the KVM device, empty without one.
    """
    rows = [(bind.inside, "ro,nosuid,nodev" + ("" if bind.executable else ",noexec"))
            for bind in document.binds]  # fmt: skip
    rows.append(("/", "ro,nosuid,nodev,noexec"))
    rows += [(share.inside, share_flags(share.writable)) for share in document.shares]
    if document.proc:
        rows.append(("/pid", "ro,nosuid,nodev,noexec"))
    if kvm_at:
        rows.append((kvm_at, "ro,nosuid,noexec"))
    return digest_of_mounts(rows)


def share_flags(writable: bool) -> str:
    """The mount flags of a shared directory, in the order of FLAGS."""
    return f"{'rw' if writable else 'ro'},nosuid,nodev,noexec"


def flags_of(options: str) -> str:
    """Those of FLAGS that the options of a line of mountinfo name."""
    words = options.split(",")
    return ",".join(flag for flag in FLAGS if flag in words)


def digest_of_mounts(rows: Sequence[tuple[str, str]]) -> str:
    """(mount point, flags) in any order -> "57 mounts, sha256 0123456789abcdef"."""
    text = "\n".join(f"{path} {flags}" for path, flags in sorted(rows))
    return f"{len(rows)} mounts, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


@cache
def wanted() -> dict[tuple[str, str], str]:
    """What the values that the launch alone can read must be, on this host and in this version."""
    try:
        landlock = f"ABI {syscalls.landlock_abi()}"
    except OSError:
        landlock = "absent"  # the kernel has none, or it was not chosen at boot (landlock(7))
    return {
        SECUREBITS_KEY: f"{SECUREBITS:#x}",
        PDEATHSIG_KEY: "0",
        LANDLOCK_KEY: landlock,
    }


def readings(
    ready: Mapping[str, object], mounts: str, held: str, exe: tuple[int, int], program: str
) -> tuple[Reading, ...]:
    """One reading per entry of KEYS; `ready` is what the launcher reported just before execve,
    `mounts` the table it was to make, `program` the SHA-256 of the seccomp program it was given.

    With a /proc in the jail the launcher read the mounts there itself, and a reading more lists
    their ids: a helper that has changed its root is shown with that one mount only.

    What it did not report is "not known" and not ok.
    """
    seen, ids = mounts, tuple[Reading, ...]()
    if "mounts" in ready:
        seen, ids = _mounts_read(ready["mounts"])
    binary = f"{exe[0]}:{exe[1]}"
    bits = ready.get("securebits")
    signal = str(ready.get("pdeathsig", "not known"))
    landlock = str(ready.get("landlock", "not known"))
    filters = str(_filters_over_us() + 1)  # those of the launching side are inherited
    asked = "the launcher's prctl, just before execve"
    want = wanted()
    said = f"{bits:#x}" if isinstance(bits, int) else "not known"
    ruled = "landlock_restrict_self in the launcher"
    return (
        _reading(SECUREBITS_KEY, want[SECUREBITS_KEY], said, asked),
        _reading(PDEATHSIG_KEY, want[PDEATHSIG_KEY], signal, asked),
        _reading(LANDLOCK_KEY, want[LANDLOCK_KEY], landlock, ruled),
        _reading(MOUNTS_KEY, mounts, seen, "the launch document"),
        *ids,
        _reading(FILES_KEY, held, held, "the launch document"),
        _reading(BINARY_KEY, binary, binary, "/proc/PID/exe after execve"),
        _reading(PROGRAM_KEY, program, program, "the launch document"),
        _reading(FILTERS_KEY, filters, filters, "/proc/self/status of the launching side"),
    )


def _filters_over_us() -> int:
    """Seccomp filters of this thread (proc(5)); an old kernel does not count them."""
    count = procfile.fields("/proc/thread-self/status").get("Seccomp_filters", "0")
    return int(count) if count.isdigit() else 0


def _mounts_read(reported: object) -> tuple[str, tuple[Reading, ...]]:
    """The digest of the mounts a launcher reported, and the reading of their ids."""
    if not isinstance(reported, list):
        return "not known", ()
    digest = digest_of_mounts([(path, flags_of(options)) for _, path, options in reported])
    ids = " ".join(str(number) for number, _, _ in reported)
    return digest, (_reading(MOUNT_IDS_KEY, ids, ids, "/proc/self/mountinfo, before execve"),)


def _reading(key: tuple[str, str], want: str, got: str, source: str) -> Reading:
    layer, item = key
    return Reading(layer, item, want, got, want == got, source, "at launch", "replace")
