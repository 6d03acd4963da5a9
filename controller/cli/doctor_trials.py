"""Checks of `box doctor` that try the real thing: a group with limits, a guest kernel on KVM, the
filter of system calls.

What they make is gone when they return. A version number or a file's presence proves neither.
"""

from __future__ import annotations

import os
import resource
import secrets
import signal

from controller.cli import kvm
from controller.cli.doctor_result import SETUP, Result, Subject

CONTAINER = "mount them read-write, or leave the container that limits them"
EMULATE = "use a host with KVM, or write accel: tcg for emulation (for trying and testing)"
# the last words of a kernel that was given no root file system: it has booted
_BOOTED = "Unable to mount root fs"


def cgroups(name: str, about: Subject) -> Result:
    """A group with every limit is made, read back and removed (cgroups(7))."""
    from reconcilers.confinement import cpuweight, userscope
    from reconcilers.confinement.cgroup import Cgroup
    from reconcilers.confinement.cgrouptree import host_tree
    from reconcilers.confinement.policy import limits_for
    from specs.errors import ConfinementError
    from specs.names import HostNames

    try:
        userscope.settle()
        tree = host_tree()
        group = Cgroup(HostNames(secrets.token_hex(6), "doctor"))
        tree.check()
        try:
            group.create(limits_for(cpus=1, ram_mib=128, kvm=True))
            swap = "swap counted" if group.read().swap_counted else "swap not counted"
            heavy = cpuweight.too_heavy(tree)
        finally:
            group.remove()
    except ConfinementError as problem:
        return Result(name, "fail", problem.message, problem.fix or CONTAINER)
    except OSError as problem:
        return Result(name, "fail", f"{problem.filename}: {problem.strerror}", CONTAINER)
    if heavy:
        return Result(name, "warn", *heavy)
    found = (f"{one} (v{at.version})" for one, at in sorted(tree.controllers.items()))
    return Result(name, "ok", f"{', '.join(found)}: limits hold when read back, {swap}")


def seccomp(name: str, about: Subject) -> Result:
    """The program for QEMU is loaded in a child, which then makes a call that it refuses."""
    from reconcilers.confinement.seccomp import load_profile

    program = load_profile("qemu", False)
    child = os.fork()
    if child == 0:
        try:
            _refused(program.blob)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGSYS:
        fix = "a kernel with CONFIG_SECCOMP_FILTER, outside of what forbids seccomp(2)"
        return Result(name, "fail", "a filter of system calls is not put in force", fix)
    size = f"{len(program.syscalls)} system calls allowed for QEMU"
    shown = f"{size}, program {program.sha256[:12]}; another one ended the child that tried it"
    return Result(name, "ok", shown)


def _refused(program: bytes) -> None:
    import prctl

    from reconcilers.confinement import syscalls

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl.set_no_new_privs(1)
    syscalls.seccomp_load(program)
    os.getpgid(0)


def hardware_virtualization(name: str, about: Subject) -> Result:
    """The guest's kernel is booted on it, unless that was done or cannot work."""
    if why := kvm.obstacle(about.kernels):
        return Result(name, "warn", why, EMULATE)
    probed = kvm.tried(about.kernels)
    if probed:
        return Result(name, "ok", f"when last tried: {probed[1]}")
    return _boot(name, about)


def _boot(name: str, about: Subject) -> Result:
    from reconcilers.hostfacts import read_host
    from reconcilers.kernel import find_kernel
    from reconcilers.process import run
    from specs.errors import CommandError

    binary = read_host(about.config).binary
    if binary is None:
        return Result(name, "warn", "not tried: there is no QEMU", SETUP)
    kernel = find_kernel(about.config, about.kernels)
    argv = [str(binary), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    argv += ["-M", "microvm,isa-serial=on", "-accel", "kvm", "-cpu", "host", "-m", "256"]
    argv += ["-kernel", str(kernel.image), "-append", "console=ttyS0 panic=-1 reboot=t"]
    try:
        # as long as the controller itself would wait
        said = run([*argv, "-serial", "stdio"], timeout=float(about.config.kvm_probe_seconds))
    except CommandError as problem:
        said = problem.last_lines
    if _BOOTED in said:
        return Result(name, "ok", f"the guest kernel {kernel.release} boots on KVM")
    lines = said.strip().splitlines()
    last = lines[-1] if lines else "it says nothing"
    return Result(name, "warn", f"the guest kernel does not boot on KVM here: {last}", EMULATE)
