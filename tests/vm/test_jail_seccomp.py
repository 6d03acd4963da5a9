"""Every rule of the profile, judged by the kernel: one case that it lets through, one it does not.

The cases are made from the profile, so a new rule is tested the moment it is written. Each runs in
the whole jail. A rule without arguments is refused by a program that lacks just that rule.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import pyseccomp
import pytest

from reconcilers.confinement.policy import Program
from reconcilers.confinement.seccomp import (
    compile_rules,
    load_profile,
    read_profile,
    read_programs,
    rules_for,
)
from specs.errors import ConfinementError
from tests.vm.harness import until
from tests.vm.jailed import confinement, jail, probe

pytestmark = pytest.mark.needs_root

Rule = dict[str, Any]
RULES: list[Rule] = read_profile("qemu")["rules"]
# Nothing of QEMU's: each must stay out of the profile, whatever else is let in.
NEVER = (
    "add_key", "bind", "bpf", "chmod", "chown", "chroot", "clock_settime", "connect",
    "delete_module", "finit_module", "fork", "fsopen", "init_module", "io_uring_enter", "kcmp",
    "kexec_load", "keyctl", "kill", "link", "mkdir", "mknod", "mount", "move_mount",
    "name_to_handle_at", "open_by_handle_at", "open_tree", "perf_event_open", "personality",
    "pidfd_getfd", "pivot_root", "process_vm_readv", "process_vm_writev", "ptrace", "reboot",
    "rename", "rmdir", "setgid", "setns", "setpriority", "setresuid", "setsid", "setuid", "socket",
    "socketpair", "swapon", "symlink", "umount2", "unshare", "userfaultfd", "vfork",
)  # fmt: skip


def name(rule: Rule) -> str:
    values = (f" {each['index']}={each['equals']}" for each in rule.get("args", ()))
    return str(rule["syscall"]) + "".join(values)


def needs(rule: Rule) -> frozenset[str]:
    """The features without which a program has no such rule."""
    return frozenset({str(rule["only"])} - {"kvm"} if "only" in rule else ())


def arguments(rule: Rule, *, matching: bool) -> list[int]:
    """Values no call can do anything with, except those the rule is about."""
    values = [-1] * 6
    for wanted in rule.get("args", ()):
        value, mask = int(wanted["equals"], 16), int(wanted.get("mask", "0xffff"), 16)
        # a bit of the mask that the value does not have, or one that it has
        values[wanted["index"]] = value if matching else value ^ (mask & -mask)
    return values


def run(program: Program, number: int, values: Sequence[int]) -> str:
    """What became of it: returned, ENOSYS, killed (by SIGSYS), or the launcher was: not started."""
    kvm = program.name.endswith("-kvm")
    with jail(confinement(program), kvm=kvm) as made:
        try:
            made.start(probe(), str(number), *map(str, values))
        except ConfinementError as error:
            assert error.layer in ("seccomp", "exec"), error
            return "not started"
        code, status = made.ended()
    if code in (os.CLD_KILLED, os.CLD_DUMPED):
        return "killed" if status == signal.SIGSYS else "returned"
    return "ENOSYS" if status == 1 else "returned"


def program(rules: Sequence[Rule], kvm: bool) -> Program:
    return compile_rules("qemu-kvm" if kvm else "qemu", rules)


def number_of(syscall: str) -> int:
    return int(pyseccomp.resolve_syscall(pyseccomp.system_arch(), syscall))


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_rule_lets_its_own_call_through(rule: Rule) -> None:
    kvm = rule.get("only") == "kvm"
    full = program(rules_for({"rules": RULES}, kvm=kvm, features=needs(rule)), kvm)
    outcome = run(full, number_of(rule["syscall"]), arguments(rule, matching=True))
    if "answer" in rule:
        assert outcome == rule["answer"]
    else:
        # some of these calls end a process by themselves; none may be ended by the filter
        assert outcome in ("returned", "ENOSYS")


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_nothing_but_the_rule_lets_it_through(rule: Rule) -> None:
    kvm = rule.get("only") == "kvm"
    rules = rules_for({"rules": RULES}, kvm=kvm, features=needs(rule))
    if rule.get("args"):
        values = arguments(rule, matching=False)
    else:
        values = arguments(rule, matching=True)
        rules = [each for each in rules if each["syscall"] != rule["syscall"]]
    outcome = run(program(rules, kvm), number_of(rule["syscall"]), values)
    assert outcome in ("killed", "not started")


@pytest.mark.parametrize("syscall", NEVER)
def test_dangerous_call_ends_the_process(syscall: str) -> None:
    outcome = run(load_profile("qemu", True), number_of(syscall), [-1] * 6)
    assert outcome == "killed"


def test_call_through_the_x32_entry_ends_the_process() -> None:
    """getpid is allowed; the same number with the x32 bit is another entrance."""
    x32 = 0x40000000  # arch/x86/include/uapi/asm/unistd.h, __X32_SYSCALL_BIT
    full = load_profile("qemu", False)
    assert run(full, number_of("getpid"), [0] * 6) == "returned"
    assert run(full, number_of("getpid") | x32, [0] * 6) == "killed"


def test_ioctl_is_refused_without_kvm() -> None:
    kvm_get_api_version = 0xAE00
    values = [-1, kvm_get_api_version, 0, 0, 0, 0]
    assert run(load_profile("qemu", False), number_of("ioctl"), values) == "killed"


def test_program_read_off_a_live_process_is_the_compiled_one() -> None:
    with jail() as made:
        made.start(probe())
        assert read_programs(made.pid) == (made.want.seccomp.sha256,)


def test_program_is_readable_while_the_process_is_stopped() -> None:
    with jail() as made:
        made.start(probe())
        os.kill(made.pid, signal.SIGSTOP)
        assert read_programs(made.pid) == (made.want.seccomp.sha256,)
        # Let go of, it stops again when it gets a processor next.
        until(lambda: made.status()["State"].startswith("T"), 10, "it is stopped as before")
        assert made.status()["TracerPid"] == "0"


def test_reading_a_frozen_process_gives_up_and_lets_go_of_it() -> None:
    with jail() as made:
        made.start(probe())
        made.group.freeze(True)
        with pytest.raises(TimeoutError):
            read_programs(made.pid)
        made.group.freeze(False)
        # A thread counts as joined a little before the kernel ends what it traced.
        until(lambda: made.status()["TracerPid"] == "0", 10, "the thread that gave up lets go")
        assert read_programs(made.pid) == (made.want.seccomp.sha256,)
        assert made.status()["TracerPid"] == "0"
