"""Checks of `box doctor` for what only some Boxfiles need: networks and shared directories.

A sandbox without them runs where these are missing, so what is missing is a warning.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from controller.cli.doctor_result import Result, Subject

VIRTIOFSD = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd")
# mount_setattr(2), openat2(2), pidfd_open(2), close_range(2); cgroup.kill is of 5.14
KERNEL_OLDEST, KERNEL_KILLS = (5, 12), (5, 14)
# sched_setattr(2) of an ordinary thread says how long it may keep a CPU
KERNEL_SLICES = (6, 12)


def host_kernel(name: str, about: Subject) -> Result:
    """The system calls the launcher cannot do without; no fallback would be as tight."""
    found = platform.release()
    numbers = re.match(r"(\d+)\.(\d+)", found)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if version < KERNEL_OLDEST:
        return Result(name, "fail", found, "Linux 5.12 or later is needed")
    if version < KERNEL_KILLS:
        return Result(name, "warn", found, "5.14 or later, for cgroup.kill of cgroup v2")
    if version < KERNEL_SLICES:
        found += " (time slices begin with 6.12: a busy guest holds the host up more than it need)"
    return Result(name, "ok", found)


def virtiofsd(name: str, about: Subject) -> Result:
    fix = "apt-get install virtiofsd (Debian 12: it comes with qemu-system-common)"
    found = next((path for path in VIRTIOFSD if os.access(path, os.X_OK)), None)
    if found is None:
        return Result(name, "warn", "not installed", fix)
    if os.geteuid() != 0 and not _mounts_proc():
        why = "an ordinary user may mount no procfs for it: parts of the host's are hidden"
        return Result(name, "warn", why, "leave the container, or have it show all of /proc")
    return Result(name, "ok", found)


def _mounts_proc() -> bool:
    """Tried in namespaces of a child: a helper's jail has one (mount_namespaces(7))."""
    from reconcilers.confinement import jailshare, syscalls

    spaces = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID
    child = os.fork()
    if child == 0:
        status = 1
        try:
            syscalls.unshare(spaces)
            if (inner := os.fork()) == 0:  # only a child is in the new pid namespace
                jailshare.mount_proc("/proc", "")
                status = 0
            else:
                status = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def passt(name: str, about: Subject) -> Result:
    """What carries a bridged sandbox of somebody who is not root: it is run."""
    from reconcilers import pasta
    from reconcilers.process import run
    from specs.errors import BoxError

    if not pasta.installed():
        return Result(name, "warn", "not installed", pasta.FIX)
    try:
        said = run([pasta.INSIDE, "--version"]).splitlines()[:1]
    except BoxError as problem:
        return Result(name, "warn", f"{pasta.INSIDE} does not run: {problem}", pasta.FIX)
    return Result(name, "ok", f"{pasta.INSIDE}: {' '.join(said)}")


def nftables(name: str, about: Subject) -> Result:
    """A table is loaded and read back, in a network namespace made for it, and one whose rule
    counts connections; an ordinary user's lie in a user namespace.
    """
    from reconcilers.network import nftjson, spaces, tables
    from specs.errors import BoxError, CommandError

    fix = "apt-get install nftables, on a kernel with nf_tables"
    if not tables.installed():
        return Result(name, "warn", "nft is not installed", fix)
    if os.geteuid() != 0:
        return _nftables_of_user(name, fix)

    def trial() -> list[str]:
        tables.load(nftjson.Table("box_doctor"))
        return tables.names()

    try:
        seen = spaces.elsewhere(trial)
    except (BoxError, OSError) as problem:
        return Result(name, "warn", f"a table cannot be loaded: {problem}", fix)
    if "box_doctor" not in seen:
        return Result(name, "warn", "a table that was loaded is not listed", fix)
    counting = nftjson.Table("box_doctor")
    counting.chain("new")
    counting.rule("new", nftjson.NEW, nftjson.more_connections_than(1), nftjson.DROP)
    try:
        spaces.elsewhere(lambda: tables.load(counting))
    except CommandError as problem:
        return _counts_no_connections(name, problem)
    where = "in a namespace of its own"
    return Result(name, "ok", f"a table was loaded and read back {where}, {_COUNTED}")


_COUNTED = "and a rule that counts connections"


def _counts_no_connections(name: str, problem: Exception) -> Result:
    """The rest of nftables is there: this is a module of its own."""
    fix = "modprobe nft_connlimit, or a kernel with CONFIG_NFT_CONNLIMIT"
    return Result(name, "warn", f"a rule that counts connections cannot be loaded: {problem}", fix)


def _nftables_of_user(name: str, fix: str) -> Result:
    from reconcilers.process import run
    from specs.errors import BoxError, CommandError

    inside = ["unshare", "--user", "--map-root-user", "--net", "nft"]
    try:
        seen = run([*inside, "add table inet box_doctor; list tables"])
    except BoxError as problem:
        return Result(name, "warn", f"a table cannot be loaded: {problem}", fix)
    if "box_doctor" not in seen:
        return Result(name, "warn", "a table that was loaded is not listed", fix)
    rule = "add rule inet box_doctor new ct state new ct count over 1 drop"
    try:
        run([*inside, f"add table inet box_doctor; add chain inet box_doctor new; {rule}"])
    except CommandError as problem:
        return _counts_no_connections(name, problem)
    return Result(name, "ok", f"a table was loaded and read back in a user namespace, {_COUNTED}")


def tap_devices(name: str, about: Subject) -> Result:
    path = Path("/dev/net/tun")
    if path.is_char_device() and os.access(path, os.R_OK | os.W_OK):
        return Result(name, "ok", str(path))
    fix = f"chmod 0666 {path}, as root" if path.is_char_device() else "modprobe tun"
    return Result(name, "warn", f"{path} cannot be opened", fix)


def forwarding(name: str, about: Subject) -> Result:
    """Between the sandboxes' links and the way out; as an ordinary user passt does that, and asks
    the same nameserver.
    """
    from ipaddress import ip_address

    from reconcilers.network import surroundings, usernetworks
    from specs.egress import egress_of

    ordinary = os.geteuid() != 0
    named = ip_address(about.config.resolver) if about.config.resolver else None
    seen = (usernetworks if ordinary else surroundings).look(named)
    problem, fix = seen.problem(egress_of("all"))
    if problem:
        return Result(name, "warn", problem, fix)
    if not seen.resolvers:
        fix = (
            "name one in /etc/resolv.conf that is not on the host's loopback, or as `resolver` in "
        )
        return Result(name, "warn", "no nameserver can be reached", f"{fix}config.toml")
    if ordinary:
        shown = ", ".join(map(str, seen.resolvers))
        return Result(name, "ok", f"not needed by an ordinary user; DNS {shown}")
    ipv6 = "IPv4 and IPv6" if seen.forwards6 and seen.ipv6_route else "IPv4"
    return Result(name, "ok", f"{ipv6}; MTU {seen.mtu}; DNS {', '.join(map(str, seen.resolvers))}")
