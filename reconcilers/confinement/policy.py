"""What the jail of one VMM must be, worked out from its Boxfile: a pure function and its values.

The launcher applies a Confinement, readback compares a live VMM with it. Nothing here looks at the
host, so the same Boxfile and identity always give the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specs.boxfile import Boxfile

MIB = 1 << 20
TRANSLATION_BUFFER = 128 * MIB  # QEMU's tb-size under emulation; the backend passes the same number
# QEMU beside guest RAM and translation buffer: 28 MiB measured with all RAM of a 256 MiB guest in
# use and its disk busy; the rest is for thread stacks, page tables and bursts of disk requests
VMM_OVERHEAD = 96 * MIB
# Under emulation each vCPU keeps software TLBs that grow with the pages a guest uses: two modes,
# up to twice as many entries as pages, 48 bytes each
SOFTWARE_TLB_SHARE = 4096 // (2 * 2 * 48)  # one byte per so many of guest RAM
PIDS_MAX = 64  # threads: main, RCU, one per vCPU, at most a few dozen short-lived disk workers
# A virtiofsd: its own memory, and what the kernel keeps of each file a guest has open there
SHARE_OVERHEAD = 64 * MIB
SHARE_PIDS = 16  # main, RCU, a thread per queue; the launcher
CPU_PERIOD_US = 100_000
# All sandboxes together weigh a tenth of what any other group does on a busy CPU: so much less does
# a program that nice(1) starts.
CPU_WEIGHT_PART = 10
NOFILE = 512
# Long against what others have (0.7 ms, times the logarithm of the CPUs: at most 2.8), so that a
# thread of the host that wakes up goes first (Linux 6.12); short for sandboxes that share a CPU
TIME_SLICE_NS = 10_000_000
UNLIMITED = -1  # RLIM_INFINITY
VMM_FILTERS = 1  # QEMU's own: -sandbox on
SHARED_PATH = "/share"  # in the jail of a helper that serves a host directory


@dataclass(frozen=True, slots=True)
class Limits:
    """Cgroup limits. `cpu_quota_us` is CPU time per `cpu_period_us`, both in microseconds.

    `cpu_weight_part`: the group that holds all sandboxes weighs this fraction of the kernel's own
    default when several want the same CPU.
    """

    memory_bytes: int
    pids_max: int
    cpu_quota_us: int
    cpu_period_us: int = CPU_PERIOD_US
    cpu_weight_part: int = CPU_WEIGHT_PART


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled seccomp filter: classic BPF, and the calls it lets through."""

    name: str
    sha256: str
    blob: bytes = field(repr=False)
    syscalls: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserNamespace:
    """The identities a user namespace knows, as rows of (inside, outside, count).

    `setgroups`: whether groups can be set in it; where not, a process keeps those it had.
    """

    uid_map: tuple[tuple[int, int, int], ...]
    gid_map: tuple[tuple[int, int, int], ...]
    setgroups: bool

    def inside_uid(self, outside: int) -> int:
        """What a UID of the host is called in it. Raises ValueError when it is not mapped."""
        return _inside(self.uid_map, outside)

    def inside_gid(self, outside: int) -> int:
        """As `inside_uid`, of a GID."""
        return _inside(self.gid_map, outside)


def _inside(rows: tuple[tuple[int, int, int], ...], outside: int) -> int:
    for inside, first, count in rows:
        if first <= outside < first + count:
            return inside + outside - first
    raise ValueError(f"{outside} is not mapped into the user namespace")


@dataclass(frozen=True, slots=True)
class Shared:
    """The host directory a helper serves, by device and inode: it ends as the helper's root.

    `owner` is (user, group) of the directory on the host, whose files are shown as the helper's own
    through an idmapped mount; None shows every file as it is.
    """

    device: int
    inode: int
    writable: bool
    owner: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Confinement:
    """Everything the launcher applies and readback demands of one VMM, or of a helper beside it.

    `rlimits` holds (name as in resource.RLIMIT_NAME in lower case, soft, hard); -1 is no limit.
    `kvm` puts a /dev/kvm node into the jail and is chosen together with a program that allows it.
    `devices` are the network devices in its namespace beside `lo`, None where the readings of the
    network judge them. `host_network`: it shares the controller's network namespace. `uid`, `gid`
    and `groups` (all its supplementary groups) are the host's numbers; with a `user_namespace` they
    must be in it.
    `time_slice_ns` is how long each of its threads may keep a CPU that others want, nanoseconds.
    `own_filters` is how many seccomp filters its program loads by itself, on top of `seccomp`.
    `role` is "vmm" or what kind of helper it is. `capabilities` are what it has as long as it
    serves, `until_ready` those it has besides and gives up by itself before; both count only in its
    own `user_namespace`.
    """

    uid: int
    gid: int
    isolation: str
    limits: Limits
    rlimits: tuple[tuple[str, int, int], ...]
    seccomp: Program
    kvm: bool = False
    devices: tuple[str, ...] | None = ()
    host_network: bool = False
    groups: tuple[int, ...] = ()
    user_namespace: UserNamespace | None = None
    role: str = "vmm"
    capabilities: frozenset[str] = frozenset()
    until_ready: frozenset[str] = frozenset()
    shared: Shared | None = None
    umask: str = "0077"
    time_slice_ns: int = TIME_SLICE_NS
    own_filters: int = 0


def limits_for(*, cpus: int, ram_mib: int, kvm: bool, shares: int = 0) -> Limits:
    """Cgroup limits of a VMM with this many vCPUs and this much guest RAM, and of the helpers of
    `shares` mounts beside it.
    """
    ram = ram_mib * MIB
    emulation = 0 if kvm else TRANSLATION_BUFFER + cpus * (ram // SOFTWARE_TLB_SHARE)
    return Limits(
        memory_bytes=ram + emulation + VMM_OVERHEAD + shares * SHARE_OVERHEAD,
        pids_max=PIDS_MAX + cpus + shares * SHARE_PIDS,
        # one CPU more than the guest has: disk workers and the main loop do not steal from vCPUs
        cpu_quota_us=(cpus + 1) * CPU_PERIOD_US,
    )


def rlimits_for(*, disk_bytes: int) -> tuple[tuple[str, int, int], ...]:
    """Resource limits of a VMM whose largest writable file has `disk_bytes` bytes.

    Processes are counted by the cgroup: RLIMIT_NPROC counts per UID, over all pid namespaces. The
    hard file size limit is open so that a disk can grow under a running VM; the VMM itself cannot
    use it, its seccomp program lets no limit be set.
    """
    return limited(fsize=(disk_bytes, UNLIMITED), nofile=NOFILE)


def limited(*, fsize: tuple[int, int], nofile: int) -> tuple[tuple[str, int, int], ...]:
    """Resource limits of any process that faces a guest: files of at most `fsize` bytes (soft,
    hard), `nofile` descriptors, and nothing of the rest.
    """
    return (
        ("core", 0, 0),
        ("fsize", *fsize),
        ("memlock", 0, 0),
        ("msgqueue", 0, 0),
        ("nice", 0, 0),
        ("nofile", nofile, nofile),
        ("rtprio", 0, 0),
    )


def confinement_for(
    box: Boxfile,
    *,
    uid: int,
    gid: int,
    kvm: bool,
    program: Program,
    disk_bytes: int = 0,
) -> Confinement:
    """The jail of this sandbox.

    `disk_bytes` is how large the file of its data disk may be now: more than the Boxfile asks for
    (a disk never shrinks), or less until it has grown. 0 where there is no disk yet. Raises
    ValueError for host identity 0: no VMM ever has it.
    """
    if uid == 0 or gid == 0:
        raise ValueError("a VMM never runs with host identity 0")
    # shared guest RAM is a memfd, a file like others to RLIMIT_FSIZE (setrlimit(2))
    shared_ram = box.ram_mib * MIB if box.mounts else 0
    return Confinement(
        uid=uid,
        gid=gid,
        isolation=str(box.isolation),
        limits=limits_for(cpus=box.cpus, ram_mib=box.ram_mib, kvm=kvm, shares=len(box.mounts)),
        rlimits=rlimits_for(disk_bytes=max(disk_bytes or box.data.size_mib * MIB, shared_ram)),
        seccomp=program,
        kvm=kvm,
        own_filters=VMM_FILTERS,
    )
