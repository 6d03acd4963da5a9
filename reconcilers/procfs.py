"""What /proc says about a process, by PID and start time (proc(5)), and signals to exactly that
one.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from specs.names import HostNames, parse_marker

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the kernel's include/linux/sched.h


@dataclass(frozen=True)
class Stat:
    """State letter, parent PID, start time (clock ticks since boot) and threads of a process.

    `kernel`: it is a thread of the kernel's. KVM puts one into the cgroup of each VM's process.
    """

    state: str
    parent: int
    start_time: int
    threads: int = 1
    kernel: bool = False

    @property
    def dead(self) -> bool:
        """A process whose first thread has ended goes on, files and all, while others run."""
        return self.state in "Xx" or (self.state == "Z" and self.threads <= 1)

    @property
    def frozen(self) -> bool:
        return self.state in "Tt"


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process. Raises OSError when that cannot be told."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may itself hold any character, so the last one ends it.
    fields = line[line.rindex(b")") + 2 :].split()
    # Counted from field 3, the state: flags are field 9, num_threads 20, starttime 22.
    kernel = bool(int(fields[6]) & _KERNEL_THREAD)
    return Stat(fields[0].decode(), int(fields[1]), int(fields[19]), int(fields[17]), kernel)


def alive(pid: int, start_time: int) -> Stat | None:
    """The process's state if this very process still runs; None when it ended or the PID is
    another's by now.
    """
    stat = read_stat(pid) if pid > 0 else None
    if stat is None or stat.dead or stat.start_time != start_time:
        return None
    return stat


def ended(pid: int, start_time: int, seconds: float) -> bool:
    """Whether this very process has ended, or does so within that time (blocking)."""
    limit = time.monotonic() + seconds
    while alive(pid, start_time) is not None:
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True


def require(pid: int, start_time: int) -> None:
    """Raises ProcessLookupError when this very process has ended: what is about to be done to its
    PID would be done to somebody else's process.
    """
    if alive(pid, start_time) is None:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended")


def send(pid: int, start_time: int, number: signal.Signals) -> bool:
    """Signal this very process; False when it has ended, or never began (0). Raises
    PermissionError.
    """
    if pid <= 0:  # the record of a VMM that is about to start
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The pidfd is held before the start time is compared, so the PID cannot change hands in
        # between.
        if alive(pid, start_time) is None:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def executable(pid: int) -> tuple[int, int] | None:
    """(device, inode) of the running executable."""
    try:
        facts = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return None
    return (facts.st_dev, facts.st_ino)


def executable_path(pid: int) -> str:
    """The path of the running executable as its own mount namespace has it; empty when unknown."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def root_of(pid: int) -> tuple[int, int] | None:
    """(device, inode) of the process's root directory."""
    try:
        facts = os.stat(f"/proc/{pid}/root")
    except OSError:
        return None
    return (facts.st_dev, facts.st_ino)


def host_boot_id() -> str:
    """The kernel's random id of this boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def marked_processes(instance: str, binary: tuple[int, int]) -> dict[str, set[int]]:
    """PIDs of VMMs that carry this instance's marker as their `-name`, by sandbox name.

    Only processes that run `binary` (device, inode) count: a `grep` for the marker is nobody's VMM.
    """
    found: dict[str, set[int]] = {}
    needle = f"box:{instance}:".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        line = _command_line(int(entry))
        if needle not in line or executable(int(entry)) != binary:
            continue
        for names in _markers(line):
            if names.instance == instance:
                found.setdefault(names.sandbox, set()).add(int(entry))
    return found


def carries(pid: int, names: HostNames) -> bool:
    """Whether the process that has this PID now carries the marker of this sandbox."""
    return names in _markers(_command_line(pid))


def _command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(64 << 10)
    except OSError:
        return b""


def _markers(line: bytes) -> list[HostNames]:
    arguments = line.decode("utf-8", "replace").split("\0")
    found = (parse_marker(value) for option, value in pairwise(arguments) if option == "-name")
    return [names for names in found if names is not None]
