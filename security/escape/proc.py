"""What /proc says about a process, read with own code (proc(5)); nothing here judges.

Every function takes a PID and raises OSError when the kernel does not show it to us.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from .within import seen_within

CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
NAMESPACES = ("net", "pid", "mnt", "ipc", "uts", "cgroup")
CHUNK = 1 << 20
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of <linux/sched.h>, field "flags" of proc(5)
# sysctl net.core.fb_tunnels_only_for_init_net says when the kernel makes them
TUNNELS = frozenset(
    ["tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "sit0", "ip6tnl0", "ip6gre0", "ip6_vti0"]
)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Descriptor:
    """One open descriptor. `kind` is file, folder, device, socket, pipe, memfd or anonymous."""

    number: int
    kind: str
    detail: str
    device: int
    inode: int
    writable: bool


def threads(pid: int) -> list[int]:
    return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))


def status(pid: int, tid: int | None = None) -> dict[str, str]:
    path = f"/proc/{pid}/status" if tid is None else f"/proc/{pid}/task/{tid}/status"
    lines = Path(path).read_text(errors="replace").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def thread_statuses(pid: int) -> dict[int, dict[str, str]]:
    """Of every thread; one that ends while it is read is left out."""
    found = {}
    for tid in threads(pid):
        try:
            found[tid] = status(pid, tid)
        except (FileNotFoundError, ProcessLookupError):
            if tid == pid:
                raise
    return found


def start_time(pid: int) -> int:
    """Clock ticks since boot; together with the PID it names one process."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return int(text[text.rindex(")") + 2 :].split()[19])


def runs_since(pid: int) -> int:
    """The same of a process that runs, 0 of one that has ended, whether or not anybody has asked
    for its status."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    words = text[text.rindex(")") + 2 :].split()
    return 0 if words[0] in "ZX" else int(words[19])


def is_of_the_kernel(pid: int) -> bool:
    """A thread of the kernel: no process can give itself that flag."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return bool(int(text[text.rindex(")") + 2 :].split()[6]) & KERNEL_THREAD)


def arguments(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")


def namespace(pid: int | str, name: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{name}")


@seen_within
def descriptors(pid: int) -> list[Descriptor]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            target, facts = os.readlink(path), os.stat(path)
            flags = int(
                Path(f"/proc/{pid}/fdinfo/{name}").read_text().split("flags:")[1].split()[0], 8
            )
        except FileNotFoundError:
            continue  # closed since it was listed
        writable = flags & os.O_ACCMODE != os.O_RDONLY
        kind = _kind(target, facts.st_mode)
        found.append(Descriptor(int(name), kind, target, facts.st_dev, facts.st_ino, writable))
    return found


def _kind(target: str, mode: int) -> str:
    if target.startswith("anon_inode:"):
        return "anonymous"
    if target.startswith("/memfd:"):
        return "memfd"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device"
    for test, word in (
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISFIFO, "pipe"),
        (stat.S_ISDIR, "folder"),
        (stat.S_ISREG, "file"),
    ):
        if test(mode):
            return word
    return "other"


@seen_within
def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0")


@seen_within
def mounts(pid: int) -> list[tuple[str, frozenset[str], str]]:
    """(mount point inside, options, kind of file system)."""
    found = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines():
        words = line.split(" ")
        kind = words[words.index("-") + 1]
        found.append((words[4], frozenset(words[5].split(",")), kind))
    return found


def interfaces(pid: int) -> list[str]:
    """Without the devices that loaded tunnel modules put into every namespace, unless one is up."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    names = {line.partition(":")[0].strip() for line in lines}
    if idle := names & TUNNELS:
        # Devices that are up, each followed by its multicast groups in indented lines.
        groups = Path(f"/proc/{pid}/net/igmp").read_text().splitlines()[1:]
        names -= idle - {line.split()[1] for line in groups if line[0].isdigit()}
    return sorted(names)


def limit(pid: int, name: str) -> tuple[str, str]:
    """Soft and hard value of one line of /proc/PID/limits."""
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
        if line.startswith(name):
            soft, hard = line[len(name) :].split()[:2]
            return soft, hard
    raise OSError(f"no limit is called {name}")


def time_slice(tid: int) -> float:
    """Milliseconds for which a thread may keep a CPU that others want (sched_getattr(2)); 0 is
    ours. Nothing where the kernel has no such number, before Linux 6.12."""
    number = {"x86_64": 315, "aarch64": 275}.get(os.uname().machine)
    block = ctypes.create_string_buffer(48)  # size, policy, flags, nice, priority, runtime, ...
    if number is None or _libc.syscall(number, tid, block, 48, 0) != 0:
        return 0.0
    return float(struct.unpack("=IIQiIQQQ", block.raw)[5] / 1e6)


@seen_within
def find_in_memory(pid: int, needles: dict[str, bytes]) -> dict[str, str]:
    """Which of the needles the process's own memory holds, and in which mapping."""
    found: dict[str, str] = {}
    longest = max(len(needle) for needle in needles.values())
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for begin, end, name in _mappings(pid):
            tail, at = b"", begin
            while at < end and len(found) < len(needles):
                try:
                    part = os.pread(memory.fileno(), min(CHUNK, end - at), at)
                except OSError:
                    break  # a guard page, or unmapped since
                if not part:
                    break
                window = tail + part
                for key, needle in needles.items():
                    if key not in found and needle in window:
                        found[key] = name or "anonymous memory"
                tail = window[-(longest - 1) :]
                at += len(part)
    return found


def _mappings(pid: int) -> list[tuple[int, int, str]]:
    """Readable mappings, the largest first: guest RAM is among them."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        words = line.split(None, 5)
        name = words[5] if len(words) > 5 else ""
        if not words[1].startswith("r") or name.startswith(("[vvar", "[vsyscall")):
            continue
        first, _, last = words[0].partition("-")
        found.append((int(first, 16), int(last, 16), name))
    return sorted(found, key=lambda mapping: mapping[0] - mapping[1])


@seen_within
def readable_address(pid: int) -> int:
    """The first byte of some readable mapping."""
    return next(begin for begin, _, _ in reversed(_mappings(pid)))
