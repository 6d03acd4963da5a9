"""What the live processes really are, read from outside: every thread of every one of them.

The readings come from /proc and the control groups by own code. A process that the kernel does not
show us is no pass.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from . import bpf, calls, groups, proc
from .arena import DATA_MIB, RAM_MIB, Arena
from .report import Failed, Unproved, check

MIB = 1 << 20
# What each backend's row of the threat model allows; anything more is a hole.
CAPABILITIES = {"qemu": 0}
PIDS_AT_MOST = 256
OVERHEAD_AT_MOST = 512 * MIB
WEIGHT_AT_MOST = 0.1  # of another group's, where both want a processor
OWN_KINDS = {  # anon_inode:[...]
    "eventfd", "eventpoll", "signalfd", "timerfd", "kvm-vm", "kvm-vcpu", "kvm-vcpu-stats",
    "kvm-vm-stats", "kvm-device",
}  # fmt: skip


@check("outside.capabilities", "no thread of a VMM or its helpers can do anything privileged")
def capabilities(arena: Arena) -> str:
    allowed = CAPABILITIES.get(arena.backend, 0)
    count = 0
    for name, pid in arena.confined().items():
        outer_user = proc.namespace(pid, "user") == proc.namespace("self", "user")
        for tid, status in proc.thread_statuses(pid).items():
            count += 1
            for each in proc.CAPABILITY_SETS:
                held = int(status[each], 16)
                if held & ~allowed and (outer_user or pid in arena.vmms().values()):
                    raise Failed(f"thread {tid} of {name} has {each} {held:#x}")
        arena.confinement.setdefault("capabilities", {})[name.partition(" ")[0]] = "none"
    return f"{', '.join(proc.CAPABILITY_SETS)} are zero in all {count} threads"


@check(
    "outside.no_new_privs",
    "no program that it runs can give it rights (set-user-ID, file capabilities)",
)
def no_new_privs(arena: Arena) -> str:
    count = 0
    for name, pid in arena.confined().items():
        for tid, status in proc.thread_statuses(pid).items():
            count += 1
            if status.get("NoNewPrivs") != "1":
                raise Failed(f"NoNewPrivs is {status.get('NoNewPrivs')} in thread {tid} of {name}")
    arena.confinement["no_new_privs"] = "1"
    return f"NoNewPrivs is 1 in all {count} threads"


@check("outside.seccomp", "a filter is in force on every thread and refuses every harmful call")
def seccomp(arena: Arena) -> str:
    count, shown = 0, ""
    judged: list[list[bpf.Program]] = []
    for name, pid in arena.confined().items():
        for tid, status in proc.thread_statuses(pid).items():
            count += 1
            mode, filters = status.get("Seccomp"), status.get("Seccomp_filters", "0")
            if mode != "2" or filters == "0":
                raise Failed(f"Seccomp is {mode} with {filters} filters in thread {tid} of {name}")
            if arena.root and (programs := bpf.fetch(tid)) not in judged:
                shown = _judged(name, tid, programs)
                judged.append(programs)  # threads mostly share theirs
    arena.confinement["seccomp"] = "filter"
    if not arena.root:
        raise Unproved(
            f"mode 2 in all {count} threads; the programs themselves are shown to root only, so"
            " what they refuse was not read (jail.calls tries one)"
        )
    arena.confinement["seccomp_allowed"] = shown
    return f"mode 2 in all {count} threads; the programs read back allow {shown}"


def _judged(name: str, tid: int, programs: list[bpf.Program]) -> str:
    """Runs the programs for every call; Failed when a harmful one gets through."""
    if not programs:
        raise Failed(f"thread {tid} of {name} has no program")
    for word, (number, args) in calls.HARMFUL.items():
        if bpf.verdict(programs, number, args) == bpf.ALLOW:
            raise Failed(f"the program of thread {tid} of {name} allows {word}")
    through = sum(bpf.verdict(programs, number) == bpf.ALLOW for number in range(calls.LAST + 1))
    for number in range(calls.LAST + 1):
        for arch, extra in ((bpf.I386, 0), (bpf.X86_64, bpf.X32_BIT)):
            if bpf.verdict(programs, number | extra, (), arch) == bpf.ALLOW:
                entry = "x32" if extra else "32-bit"
                raise Failed(f"the program of thread {tid} of {name} allows {entry} call {number}")
    return f"{through} of {calls.LAST + 1} calls, none of {len(calls.HARMFUL)} harmful ones"


@check("outside.uid", "strict: a user of its own for each sandbox; standard: an unprivileged one")
def uid(arena: Arena) -> str:
    seen: dict[str, set[str]] = {}
    for name, pid in arena.confined().items():
        for tid, status in proc.thread_statuses(pid).items():
            users, own = status["Uid"].split(), status["Gid"].split()
            if len(set(users)) != 1 or len(set(own)) != 1:
                raise Failed(f"thread {tid} of {name} has mixed ids: {users} {own}")
            if "0" in (users[0], own[0]):
                raise Failed(f"thread {tid} of {name} is host user {users[0]}, group {own[0]}")
            extra = set(status["Groups"].split()) - {own[0]} - kvm_group(arena)
            if extra:
                raise Failed(f"thread {tid} of {name} is in the groups {' '.join(sorted(extra))}")
            seen.setdefault(name.partition(" ")[0], set()).add(users[0])
    mixed = {name: ids for name, ids in seen.items() if len(ids) != 1}
    if mixed:
        raise Failed(f"several users within one sandbox: {mixed}")
    users_of = {name: ids.copy().pop() for name, ids in seen.items()}
    listed = {str(entry.pw_uid) for entry in pwd.getpwall()}
    if arena.isolation == "strict":
        if len(set(users_of.values())) != len(users_of):
            raise Failed(f"two sandboxes share a user: {users_of}")
        for name, user in users_of.items():
            if user == str(os.geteuid()) or user in listed:
                raise Failed(f"{name} runs as user {user}, who is ours or somebody's")
            if others := _others_of(user, arena.confined()):
                raise Failed(f"user {user} of {name} also runs {others}")
    elif arena.root and (strangers := listed & set(users_of.values())):
        raise Failed(f"a VMM runs as user {strangers}, who is somebody")
    kind = "own" if arena.isolation == "strict" else "shared" if arena.root else "ours"
    arena.confinement["uid"] = kind
    words = {"own": "one for each", "shared": "unprivileged, shared", "ours": "our own"}[kind]
    return f"{words}: " + ", ".join(f"{name} is {user}" for name, user in users_of.items())


def kvm_group(arena: Arena) -> set[str]:
    try:
        return (
            {str(os.stat("/dev/kvm").st_gid)} if arena.accel != "tcg" and not arena.root else set()
        )
    except OSError:
        return set()


def _others_of(user: str, known: dict[str, int]) -> list[int]:
    """Processes of this user that are none of ours."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in known.values():
            try:
                if proc.status(int(name))["Uid"].split()[0] == user:
                    found.append(int(name))
            except (OSError, KeyError):
                continue
    return found


@check(
    "outside.namespaces",
    "it cannot see or reach processes, mounts, networks or IPC of anybody else",
)
def namespaces(arena: Arena) -> str:
    names, sandboxes = proc.NAMESPACES, arena.vmms()
    seen: dict[str, dict[str, str]] = {}
    for name, pid in sandboxes.items():
        seen[name] = {each: proc.namespace(pid, each) for each in names}
        for each in names:
            if seen[name][each] == proc.namespace("self", each):
                raise Failed(f"{name} shares our {each} namespace {seen[name][each]}")
        inner = proc.status(pid)["NSpid"].split()[1:]
        if inner != ["1"]:
            raise Failed(f"{name} is not the first process of its namespace: {inner}")
    for each in names:
        if seen["a"][each] == seen["b"][each]:
            raise Failed(f"a and b share the {each} namespace {seen['a'][each]}")
    for name, pid in arena.confined().items():
        for each in ("pid", "mnt", "ipc"):
            if proc.namespace(pid, each) == proc.namespace("self", each):
                raise Failed(f"{name} shares our {each} namespace")
    arena.confinement["namespaces"] = list(names)
    return f"{', '.join(names)}: of a, of b and of the host all differ; a and b are PID 1 inside"


@check("outside.limits", "it cannot take the host's memory, processes or CPU time")
def limits(arena: Arena) -> str:
    readings = []
    for name, pid in arena.vmms().items():
        own = groups.folders(f"/proc/{pid}")
        for tid in proc.threads(pid):
            if groups.folders(f"/proc/{pid}/task/{tid}") != own:
                raise Failed(f"thread {tid} of {name} is in other control groups than its process")
        found = groups.limits(pid)
        most = 2 * RAM_MIB * MIB + OVERHEAD_AT_MOST
        if found.memory is None or found.memory > most:
            raise Failed(f"the memory limit of {name} is {_mib(found.memory)}, over {_mib(most)}")
        if found.pids is None or found.pids > PIDS_AT_MOST:
            raise Failed(f"the process limit of {name} is {found.pids}, over {PIDS_AT_MOST}")
        if found.cpus is None or found.cpus > 1 + 1:
            raise Failed(f"the CPU quota of {name} is {found.cpus} for 1 virtual CPU")
        weight, at = groups.weight(pid) or (1.0, "nowhere")
        if weight > WEIGHT_AT_MOST:
            raise Failed(
                f"no group around {name} weighs less than {weight:g} of another: on a busy"
                " processor the host's own programs wait for it"
            )
        if found.swap_counted and found.swap:
            raise Failed(f"{name} may swap {_mib(found.swap)} out")
        for tid in proc.threads(pid):
            if proc.time_slice(tid) <= proc.time_slice(0) > 0:
                raise Failed(
                    f"thread {tid} of {name} has a time slice of {proc.time_slice(tid):g} ms, no"
                    " longer than ours: what wakes up on the host may wait for it"
                )
        core = proc.limit(pid, "Max core file size")
        if core != ("0", "0"):
            raise Failed(f"{name} may dump {core} bytes of guest memory")
        size = proc.limit(pid, "Max file size")[0]
        if size == "unlimited" or int(size) > DATA_MIB * MIB:
            raise Failed(f"{name} may write files of {size} bytes, its disk has {DATA_MIB} MiB")
        readings.append(
            f"{name}: {_mib(found.memory)}, {found.pids} tasks, {found.cpus:g} CPUs, all in {at}"
            f" together {weight:.2g} of another group's weight"
        )
    for name, pid in arena.confined().items():
        if " " in name and groups.limits(pid).memory is None:
            raise Failed(f"{name} has no memory limit")
    arena.confinement["limits"] = ["memory", "pids", "cpu"]
    return "; ".join(readings)


def _mib(value: int | None) -> str:
    return "none" if value is None else f"{value / MIB:.0f} MiB"


@check(
    "outside.descriptors", "nothing of the host is open in it but its own disk, image and sockets"
)
def descriptors(arena: Arena) -> str:
    counts = []
    for name, pid in arena.confined().items():
        sandbox = name.partition(" ")[0]
        found = proc.descriptors(pid)
        for each in found:
            if reason := unexpected(arena, sandbox, pid, each):
                raise Failed(f"descriptor {each.number} of {name} is {each.detail}: {reason}")
        kinds = sorted({each.kind for each in found})
        counts.append(f"{name} has {len(found)} ({', '.join(kinds)})")
    arena.confinement["descriptors"] = "own disk, image, sockets"
    return "; ".join(counts)


def unexpected(arena: Arena, sandbox: str, pid: int, found: proc.Descriptor) -> str:
    """Why this descriptor should not be there; empty when it should."""
    if found.kind in ("socket", "pipe", "memfd"):
        return ""
    if found.kind == "anonymous":
        what = found.detail.removeprefix("anon_inode:").strip("[]")
        return "" if what.split(":")[0] in OWN_KINDS else "not of a kind a VMM makes for itself"
    if found.kind == "device":
        if found.detail == "/dev/null" and not found.writable:
            return ""
        expected = {"/dev/kvm"} if arena.accel != "tcg" else set()
        return "" if found.detail in expected else "a device"
    if _inside_its_root(pid, found):
        return "" if not found.writable else "writable in its own root"
    home = str(arena.home.path)
    if found.detail.startswith(f"{home}/disks/{sandbox}/") and found.kind == "file":
        return ""
    if found.detail.startswith(f"{home}/images/") and not found.writable:
        return ""
    return "of the host, and none of its own"


def _inside_its_root(pid: int, found: proc.Descriptor) -> bool:
    try:
        facts = os.stat(f"/proc/{pid}/root{found.detail}")
    except OSError:
        return False
    return (facts.st_dev, facts.st_ino) == (found.device, found.inode)


@check("outside.root", "its root holds a few read-only files; it sees no folder of the host")
def root(arena: Arena) -> str:
    canary = str(arena.canary_file).lstrip("/")
    counts = []
    for name, pid in arena.vmms().items():
        top = Path(f"/proc/{pid}/root")
        if (
            os.stat(top).st_ino == os.stat("/").st_ino
            and os.stat(top).st_dev == os.stat("/").st_dev
        ):
            raise Failed(f"the root of {name} is the host's")
        table = proc.mounts(pid)
        writable = [point for point, options, _ in table if "ro" not in options]
        if writable:
            raise Failed(f"{name} may write to {writable[0]}")
        loose = [point for point, options, _ in table if not {"nosuid"} <= options]
        if loose:
            raise Failed(f"set-user-ID programs count on {loose[0]} of {name}")
        if os.path.lexists(top / canary):
            raise Failed(f"{name} sees the canary {arena.canary_file}")
        for path in ("etc/passwd", "etc/shadow", "root", "home", "proc/1", "sys/kernel", "run/box"):
            if os.path.lexists(top / path):
                raise Failed(f"{name} sees /{path}")
        environment = proc.environment(pid)
        if environment:
            raise Failed(f"{name} has {len(environment)} bytes of environment")
        counts.append(f"{name} {len(table)}")
    arena.confinement["root"] = "read-only, own"
    return f"mounts, all read-only and nosuid: {', '.join(counts)}; no host folder, no environment"


@check("outside.network_device", "without a network it has no device that could reach one")
def network_device(arena: Arena) -> str:
    for name, pid in arena.vmms().items():
        found = proc.interfaces(pid)
        if found != ["lo"]:
            raise Failed(f"{name} has the devices {' '.join(found)}")
    arena.confinement["network none"] = "lo only"
    return "lo is the only device in the network namespaces of a and b"


@check("outside.hardware", "the processor itself keeps the guest apart, not an emulator")
def hardware(arena: Arena) -> str:
    kinds = {}
    for name, pid in arena.vmms().items():
        kinds[name] = any("kvm-vcpu" in each.detail for each in proc.descriptors(pid))
    arena.confinement["hardware"] = all(kinds.values())
    if not all(kinds.values()):
        if arena.accel != "tcg":
            raise Failed(f"{arena.accel} was asked for, and the processor is emulated: {kinds}")
        raise Unproved("the processor is emulated (accel: tcg): no wall of hardware was proved")
    return "every VMM holds a virtual CPU of /dev/kvm"
