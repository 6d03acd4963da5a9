"""A Debian whose systemd is PID 1, in namespaces of its own; no network, nothing of the host's.

It has a group of the host's cgroup v2 tree as its whole tree. /proc/sys and /sys are read-only, so
that no unit can change a setting of the host. It must not know what is tested inside.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.setup.freshroot import FreshRoot
from tests.vm.harness import until

PACKAGES = "systemd systemd-sysv dbus libpam-systemd dbus-user-session"
# Before unshare(1): systemd's cgroup namespace begins at the group the process is in.
BOOT = """
set -e
root=$1; echo $$ >"$2/cgroup.procs"
exec unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child --propagation private \
    sh -ec "$3" boot "$root"
"""
INSIDE = """
root=$1
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for each in null zero full random urandom tty; do
    touch "$root/dev/$each"
    mount --bind "/dev/$each" "$root/dev/$each"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
hostname boxtest
cd "$root"
pivot_root . .
umount -l .
cd /
exec env -i container=boxtest PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /usr/lib/systemd/systemd --system --unit=basic.target --log-target=journal
"""


class Machine:
    """One that has been started; `run` is root's shell in it, outside of any session."""

    def __init__(self, pid: int, group: Path) -> None:
        self.pid, self.group = pid, group
        self.outside = group / "outside"
        self.outside.mkdir()

    def run(self, command: str, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        entered = 'echo $$ >"$1"; shift; exec "$@"'
        spaces = [f"--{each}" for each in ("mount", "pid", "net", "uts", "ipc", "cgroup")]
        return subprocess.run(
            ["sh", "-c", entered, "sh", str(self.outside / "cgroup.procs")]
            + ["nsenter", f"--target={self.pid}", *spaces, "sh", "-c", command],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    def is_up(self) -> bool:
        return self.run("systemctl is-system-running").stdout.strip() in ("running", "degraded")


def held(group: Path) -> bool:
    try:
        return any(file.read_text() for file in group.rglob("cgroup.procs"))
    except OSError:  # a group has gone between its name and its processes: look again
        return True


@contextlib.contextmanager
def machine(root: FreshRoot, group: Path) -> Iterator[Machine]:
    """Started in `root`, in the new group `group`; both are free of it afterwards."""
    group.mkdir()
    argv = ["sh", "-c", BOOT, "boot", str(root.path), str(group), INSIDE]
    starting = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        children = Path(f"/proc/{starting.pid}/task/{starting.pid}/children")
        first = int(until(lambda: children.read_text().split(), 20, "it has a first process")[0])
        comm = Path(f"/proc/{first}/comm")
        until(lambda: comm.read_text() == "systemd\n", 20, "it is systemd")
        made = Machine(first, group)
        until(made.is_up, 60, "it is up")
        yield made
    finally:
        starting.kill()  # and with it, by --kill-child, all that runs inside
        starting.wait()
        until(lambda: not held(group), 20, f"{group} is empty")
        for folder in [*sorted(group.rglob("*"), reverse=True), group]:
            if folder.is_dir():
                folder.rmdir()
