"""Checks of `box doctor` about what the kernel and installed packages offer.

A function's name is what the user reads. What another room knows how to find is asked of that room,
so that doctor and controller never disagree. No check may change the host.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil

from controller.cli.doctor_result import SETUP, Result, Subject

QEMU_OLDEST = (7, 2)


def launching_side(name: str, about: Subject) -> Result:
    """What this very process must have to build a jail."""
    from reconcilers.confinement import preflight

    wrong = [one for one in preflight.launching_side() if not one.ok]
    if wrong:
        found = "; ".join(f"{one.item}: {one.got}" for one in wrong)
        return Result(name, "fail", found, "run box as root, outside a container that limits it")
    return Result(name, "ok", "capabilities and system calls are not limited")


def identities(name: str, about: Subject) -> Result:
    """The range for strict sandboxes belongs to nobody else."""
    from reconcilers.confinement import ordinary
    from reconcilers.confinement.identity import host_overlaps, standard_uid
    from reconcilers.confinement.idranges import ranges_of

    if ordinary.current() is not None:
        return Result(name, "ok", "an ordinary user has subordinate ones, see below")
    ranges = ranges_of(about.config)
    if found := host_overlaps(ranges):
        fix = f"set uid_first and uid_count in {about.home / 'config.toml'} to a free range"
        return Result(name, "fail", f"overlap: {'; '.join(found)}", fix)
    standard = standard_uid(about.config)
    shown = ", ".join(map(str, ranges))
    return Result(name, "ok", f"{shown} for strict sandboxes, {standard} for standard ones")


def namespaces(name: str, about: Subject) -> Result:
    """Really made, in a child that ends at once."""
    from reconcilers.confinement import syscalls

    wanted = {
        "mount": 0x00020000,  # CLONE_NEW* of <linux/sched.h>
        "cgroup": 0x02000000,
        "uts": 0x04000000,
        "ipc": 0x08000000,
        "pid": 0x20000000,
        "net": 0x40000000,
    }
    if os.geteuid() != 0:
        return Result(name, "ok", "an ordinary user makes them in a user namespace, see below")
    refused = []
    for kind, flag in wanted.items():
        child = os.fork()
        if child == 0:
            status = 1
            try:
                syscalls.unshare(flag)
                status = 0
            finally:
                os._exit(status)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            refused.append(kind)
    if refused:
        fix = "run as root on the host itself, or in a container that may make namespaces"
        return Result(name, "fail", f"refused: {', '.join(refused)}", fix)
    return Result(name, "ok", ", ".join(wanted))


def open_files(name: str, about: Subject) -> Result:
    """The hard limit that a controller started like this one has, or gets by itself (tried)."""
    from reconcilers.confinement import openfiles

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        most = openfiles.take_most()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[0], limits[1]))
    if most < openfiles.NEEDED:
        return Result(name, "warn", f"at most {most}, {openfiles.NEEDED} needed", openfiles.FIX)
    return Result(name, "ok", f"at most {most}")


def landlock(name: str, about: Subject) -> Result:
    """A sandbox starts on a kernel that has none; where it is and fails, it does not."""
    from reconcilers.confinement import syscalls

    try:
        return Result(name, "ok", f"ABI {syscalls.landlock_abi()}")
    except OSError as problem:
        if problem.errno not in (errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    fix = "one layer less; boot a kernel that has it, with landlock among the names of lsm="
    return Result(name, "warn", "not offered by this kernel", fix)


def qemu(name: str, about: Subject) -> Result:
    from reconcilers.hostfacts import read_host

    host = read_host(about.config)
    fix = f"{SETUP} (Debian: apt-get install qemu-system-x86)"
    if host.binary is None:
        return Result(name, "fail", "qemu-system-x86_64 was not found", fix)
    if host.version is None:
        return Result(name, "fail", f"{host.binary} does not say its version", fix)
    found = f"{host.binary} {host.version[0]}.{host.version[1]}"
    if host.version < QEMU_OLDEST:
        return Result(name, "fail", found, "QEMU 7.2 or later is needed")
    return Result(name, "ok", found)


def qemu_files(name: str, about: Subject) -> Result:
    """What the jail's root will hold: the emulation module is missed by ldd and fatal without."""
    from reconcilers.confinement.rootview import root_files
    from reconcilers.hostfacts import read_host

    binary = read_host(about.config).binary
    if binary is None:
        return Result(name, "fail", "there is no QEMU", SETUP)
    return Result(name, "ok", f"{len(root_files(str(binary)))} files go into the jail")


def guest_kernel(name: str, about: Subject) -> Result:
    from reconcilers.kernel import boot_modules, find_kernel

    kernel = find_kernel(about.config, about.kernels)
    modules = len(boot_modules(kernel))
    found = f"{kernel.release} at {kernel.image}, {modules} modules"
    return Result(name, "ok", found)


def guest_agent(name: str, about: Subject) -> Result:
    from agent.build import agent_binary

    return Result(name, "ok", str(agent_binary()))


def busybox(name: str, about: Subject) -> Result:
    from reconcilers.images.builtin import BUSYBOX

    if BUSYBOX.is_file():
        return Result(name, "ok", str(BUSYBOX))
    return Result(name, "fail", f"{BUSYBOX} is missing", f"{SETUP} (busybox-static)")


def skopeo(name: str, about: Subject) -> Result:
    from reconcilers.images.fetch import PROGRAM
    from reconcilers.process import SEARCH

    found = shutil.which(PROGRAM, path=SEARCH)
    if found is None:
        return Result(name, "warn", "not installed", f"{SETUP} (Debian: apt-get install skopeo)")
    return Result(name, "ok", found)


def image_tools(name: str, about: Subject) -> Result:
    wanted = {
        "mksquashfs": "squashfs-tools",
        "sqfstar": "squashfs-tools",
        "mke2fs": "e2fsprogs",
    }
    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [tool for tool in wanted if shutil.which(tool, path=search) is None]
    if missing:
        packages = " ".join(dict.fromkeys(wanted[tool] for tool in missing))
        return Result(name, "fail", f"missing: {', '.join(missing)}", f"apt-get install {packages}")
    return Result(name, "ok", ", ".join(wanted))
