"""Readings of a VMM's own process: /proc/PID and its threads.

Each function reads one layer and yields its readings. Nothing is changed here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache

from reconcilers.confinement import atlaunch, filters, inside, netdevices, procfile, syscalls
from reconcilers.confinement.capabilities import mask
from reconcilers.confinement.idmaps import rows_text
from reconcilers.confinement.policy import UNLIMITED, Confinement, Shared, UserNamespace
from reconcilers.confinement.readfds import given_files, readings_of
from reconcilers.confinement.seccomp import read_programs
from specs.reading import Mend, Reading

NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup")
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_SYS_NICE, _SYS_RESOURCE = 23, 24  # capabilities(7)
_SECCOMP_FILTER_MODE = "2"  # proc(5), Seccomp
# /proc/PID/limits names them in words
_LIMIT_NAMES = {
    "core": "Max core file size",
    "fsize": "Max file size",
    "memlock": "Max locked memory",
    "msgqueue": "Max msgqueue size",
    "nice": "Max nice priority",
    "nofile": "Max open files",
    "rtprio": "Max realtime priority",
}

Known = Mapping[tuple[str, str], Reading]


def read_process(pid: int, want: Confinement, known: Known) -> Iterator[Reading]:
    """Every reading that /proc/PID gives."""
    proc = f"/proc/{pid}"
    threads = list(threads_of(f"{proc}/task", pid))
    yield from _status(proc, threads, want)
    if os.geteuid() == 0:
        yield from _seccomp(pid, want)
    else:
        yield from _seccomp_of_user(threads, want, known)
    yield from _namespaces(pid, threads[0], want)
    if want.user_namespace is not None:
        yield from _user_namespace(proc, want.user_namespace)
    yield from _network(proc, want)
    yield from _root(proc, want, known)
    yield from readings_of(inside.read_held_of(pid, want, given_files(known)), proc, known)
    yield from _surroundings(proc, known)
    yield from _rlimits(proc, want)
    yield _scheduler(threads, want)


def threads_of(folder: str, pid: int) -> Iterator[Mapping[str, str]]:
    """The main thread first, whose number is the process's own: once numbers have begun again at
    the bottom, a later thread has a lower one. One that ends while they are read is left out.
    """
    yield procfile.fields(f"{folder}/{pid}/status")
    for tid in os.listdir(folder):
        if tid != str(pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield procfile.fields(f"{folder}/{tid}/status")


def _status(
    proc: str, threads: Sequence[Mapping[str, str]], want: Confinement
) -> Iterator[Reading]:
    """The same for every thread: Linux keeps credentials per thread."""
    source = f"{proc}/task/*/status"
    for item, number in (("Uid", want.uid), ("Gid", want.gid)):
        yield _same("identity", item, "\t".join([str(number)] * 4), _each(threads, item), source)
    groups = " ".join(map(str, want.groups))
    yield _same("identity", "Groups", groups, _each(threads, "Groups"), source)
    for name in _CAPABILITY_SETS:
        wanted, got = _capabilities(name, threads, want)
        yield _same("capabilities", name, wanted, got, source)
    yield _same("no_new_privs", "NoNewPrivs", "1", _each(threads, "NoNewPrivs"), source)
    yield _same("seccomp", "Seccomp", _SECCOMP_FILTER_MODE, _each(threads, "Seccomp"), source)
    yield _same("session", "Umask", want.umask, _each(threads, "Umask"), source)


def _capabilities(
    name: str, threads: Sequence[Mapping[str, str]], want: Confinement
) -> tuple[str, str]:
    """(wanted, got) of one set. Of a helper that gives some up by itself, a thread that began
    before may still have them: Linux keeps capabilities per thread, and none counts on the host.
    """
    kept = mask(want.capabilities if name in ("CapPrm", "CapEff") else ())
    wanted = f"{kept:016x}"
    got = _each(threads, name)
    if want.until_ready and name != "CapBnd" and threads[0].get(name) == wanted:
        before = f"{mask(want.capabilities | want.until_ready):016x}"
        if got == " | ".join(sorted({wanted, before})):
            return got, got
    return wanted, got


def _seccomp(pid: int, want: Confinement) -> Iterator[Reading]:
    """The program itself. Every thread descends from the main one and inherits what it had."""
    wanted = want.seccomp.sha256
    mend: Mend = "replace"
    try:
        programs = _programs(pid, procfile.start_time(pid))
        got = wanted if wanted in programs else ", ".join(programs) or "none"
    except TimeoutError as error:
        got, mend = f"not readable: {error.strerror}", "in place"  # it is read once it is thawed
    except OSError as error:
        got = f"not readable: {error.strerror}"
    yield _same("seccomp", "program sha256", wanted, got, "PTRACE_SECCOMP_GET_FILTER", mend)


def _seccomp_of_user(
    threads: Sequence[Mapping[str, str]], want: Confinement, known: Known
) -> Iterator[Reading]:
    """The kernel shows the program itself to root alone (PTRACE_SECCOMP_GET_FILTER needs
    CAP_SYS_ADMIN outside): what was loaded is known from the launch, and that none is missing from
    their number. Every thread descends from the main one, which has the launch's and its own; what
    that one loads for itself, others may be without.
    """
    recorded = known.get(atlaunch.PROGRAM_KEY)
    wanted = want.seccomp.sha256
    got = recorded.got if recorded else "not known"
    source = "the launcher; only root may read it later"
    layer, item = atlaunch.PROGRAM_KEY
    yield Reading(layer, item, wanted, got, got == wanted, source, "at launch", "replace")
    begun = filters.at_launch(known.values())
    least = begun + want.own_filters
    found = _each(threads, filters.FIELD)
    ok = filters.count(threads[0]) >= least and min(map(filters.count, threads)) >= begun
    layer, item = atlaunch.FILTERS_KEY
    source = f"/proc/{threads[0].get('Pid', '')}/task/*/status"
    yield Reading(layer, item, f"{least} or more", found, ok, source, "live", "replace")


@lru_cache(maxsize=4096)
def _programs(pid: int, start: int) -> tuple[str, ...]:
    """Read once per process: the kernel can add filters to it, never change or remove one."""
    return read_programs(pid)


def _namespaces(pid: int, status: Mapping[str, str], want: Confinement) -> Iterator[Reading]:
    for name in NAMESPACES:
        path = f"/proc/{pid}/ns/{name}"
        theirs, ours = os.readlink(path), os.readlink(f"/proc/self/ns/{name}")
        if name == "net" and want.host_network:
            yield _same("namespaces", name, f"the host's {ours}", f"the host's {theirs}", path)
            continue
        got = "shared with the host" if theirs == ours else theirs
        yield Reading("namespaces", name, "its own", got, theirs != ours, path, "live", "replace")
    inner = status.get("NSpid", "").split()[1:]
    yield _same("namespaces", "PID inside", "1", " ".join(inner), f"/proc/{pid}/status NSpid")


def _user_namespace(proc: str, want: UserNamespace) -> Iterator[Reading]:
    """Its identities, as our own namespace sees them (user_namespaces(7))."""
    path = f"{proc}/ns/user"
    theirs, ours = os.readlink(path), os.readlink("/proc/self/ns/user")
    got = "shared with the host" if theirs == ours else theirs
    yield Reading("namespaces", "user", "its own", got, theirs != ours, path, "live", "replace")
    for item, rows in (("uid_map", want.uid_map), ("gid_map", want.gid_map)):
        path = f"{proc}/{item}"
        lines = procfile.read(path).decode("ascii", "replace").splitlines()
        shown = ", ".join(" ".join(line.split()) for line in lines)
        wanted = rows_text(rows).replace("\n", ", ")
        yield _same("namespaces", item, wanted, shown, path)


def _network(proc: str, want: Confinement) -> Iterator[Reading]:
    if want.devices is None:
        return
    path = f"{proc}/net/dev"
    names, wanted = netdevices.read(proc), sorted(("lo", *want.devices))
    # One that is gone can be made again beside the running VMM; one too many may be anything.
    mend: Mend = "in place" if set(names) < set(wanted) else "replace"
    yield _same("network", "devices", " ".join(wanted), " ".join(names), path, mend)


def _root(proc: str, want: Confinement, known: Known) -> Iterator[Reading]:
    path = f"{proc}/mountinfo"
    rows = []
    writable = []
    for line in procfile.read(path).decode("utf-8", "replace").split("\n")[:-1]:
        words = line.split(" ")
        rows.append((words[4], atlaunch.flags_of(words[5])))
        if "ro" not in words[5].split(","):
            writable.append(words[4])
    if want.shared is not None:
        yield from _shared_root(proc, want.shared, rows)
        return
    yield _same("root", "writable mounts", "", " ".join(sorted(writable)), path)
    recorded = known.get(atlaunch.MOUNTS_KEY)
    wanted = recorded.want if recorded else "recorded by the launch"
    yield _same("root", "mounts", wanted, atlaunch.digest_of_mounts(rows), path)
    at = procfile.identity_of(f"{proc}/cwd") == procfile.identity_of(f"{proc}/root")
    yield _same("root", "working directory", "/", "/" if at else "elsewhere", f"{proc}/cwd")
    if not want.kvm:
        device = [mount for mount, _ in rows if mount.startswith("/dev")]
        yield _same("root", "/dev", "", " ".join(device), path)


def _shared_root(proc: str, shared: Shared, rows: Sequence[tuple[str, str]]) -> Iterator[Reading]:
    """A helper whose root is the directory it serves sees one mount: that directory's."""
    path = f"{proc}/mountinfo"
    seen = ", ".join(f"{where} {flags}" for where, flags in rows)
    flags = atlaunch.share_flags(shared.writable)
    yield _same("root", "mounts in its view", f"/ {flags}", seen, path)
    wanted = f"{shared.device}:{shared.inode}"
    for item, link in (("directory", "root"), ("working directory", "cwd")):
        device, inode = procfile.identity_of(f"{proc}/{link}")
        yield _same("root", item, wanted, f"{device}:{inode}", f"{proc}/{link}")


def _surroundings(proc: str, known: Known) -> Iterator[Reading]:
    terminal = procfile.stat_fields(f"{proc}/stat")[7 - 3]  # tty_nr is field 7
    yield _same("session", "terminal", "0", terminal, f"{proc}/stat")
    recorded = known.get(atlaunch.BINARY_KEY)
    device, inode = procfile.identity_of(f"{proc}/exe")
    wanted = recorded.want if recorded else "recorded by the launch"
    yield _same("exec", "binary", wanted, f"{device}:{inode}", f"{proc}/exe")


def _rlimits(proc: str, want: Confinement) -> Iterator[Reading]:
    path = f"{proc}/limits"
    found = {}
    for line in procfile.read(path).decode("ascii", "replace").splitlines()[1:]:
        found[line[:26].strip()] = line[26:].split()[:2]
    for name, soft, hard in want.rlimits:
        wanted = f"{_limit(soft)} {_limit(hard)}"
        got = found.get(_LIMIT_NAMES[name], ["not shown", "not shown"])
        mend: Mend = "in place"
        if got[1] not in (_limit(hard), "unlimited") and not _has(_SYS_RESOURCE):
            mend = "replace"  # getrlimit(2): a hard limit goes down only, without the capability
        yield _same("rlimits", name, wanted, " ".join(got), path, mend)


def _scheduler(threads: Sequence[Mapping[str, str]], want: Confinement) -> Reading:
    """Each thread has a time slice of its own, which root can change (sched_setattr(2))."""
    wanted, found = _milliseconds(want.time_slice_ns), set()
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            found.add(syscalls.time_slice(int(thread["Pid"])))
    if found == {0} and not syscalls.time_slice(0):
        wanted = got = "not known to this kernel"
    else:
        got = " | ".join(map(_milliseconds, sorted(found)))
    mend: Mend = "in place" if want.uid == os.geteuid() or _has(_SYS_NICE) else "replace"
    return _same("scheduler", "time slice", wanted, got, "sched_getattr(2)", mend)


def _milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1_000_000:g} ms" if nanoseconds else "none"


@cache
def _has(capability: int) -> bool:
    """Whether this process has it."""
    return bool(int(procfile.fields("/proc/self/status")["CapEff"], 16) >> capability & 1)


def _limit(value: int) -> str:
    return "unlimited" if value == UNLIMITED else str(value)


def _each(threads: Sequence[Mapping[str, str]], name: str) -> str:
    """The value all threads have, or every value that occurs."""
    values = {thread.get(name, "not shown") for thread in threads}
    return values.pop() if len(values) == 1 else " | ".join(sorted(values))


def _same(
    layer: str, item: str, want: str, got: str, source: str, mend: Mend = "replace"
) -> Reading:
    return Reading(layer, item, want, got, want == got, source, "live", mend)
