"""The system call allowlist: compiled from a profile in security/profiles, read off a live VMM.

libseccomp compiles, once per process; the launcher loads the bytes. The profile is data with a
reason per rule, and this module must not add a rule of its own.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from reconcilers.confinement import syscalls
from reconcilers.confinement.policy import Program
from specs.errors import ConfinementError

_PROFILES = "security.profiles"
_STOP_WAIT = 0.5  # seconds for a thread to reach its stop; a frozen one never does
_STOPPED = 0x7F  # wait(2): the low byte of the status of a stopped child
_RULE_KEYS = {"syscall", "reason", "args", "answer", "only"}


@cache
def load_profile(name: str, kvm: bool, features: frozenset[str] = frozenset()) -> Program:
    """The compiled program of `security/profiles/NAME.json`, cached for the process.

    Rules that say `only` are left out unless KVM or one of the `features` is what they are for.

    Raises ConfinementError(layer="seccomp") when libseccomp is missing or refuses the profile.
    """
    try:
        profile = read_profile(name)
        return compile_rules(name, rules_for(profile, kvm=kvm, features=features))
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ConfinementError(
            f"the profile {name} cannot be compiled: {error}",
            layer="seccomp",
            fix="./dev setup installs libseccomp2 and pyseccomp",
        ) from error


def read_profile(name: str) -> dict[str, Any]:
    """The profile as data. Raises ValueError when it is not one, OSError when there is none."""
    text = resources.files(_PROFILES).joinpath(f"{name}.json").read_text()
    profile: dict[str, Any] = json.loads(text)
    if profile.get("name") != name or profile.get("default") != "kill_process":
        raise ValueError("a profile has a name and the default kill_process")
    for rule in profile["rules"]:
        if not rule.get("reason") or not set(rule) <= _RULE_KEYS:
            raise ValueError(f"a rule needs a reason and no unknown key: {rule}")
    return profile


def rules_for(
    profile: Mapping[str, Any], *, kvm: bool, features: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    """The rules of a profile that apply with or without KVM and these features."""
    has = features | {"kvm"} if kvm else features
    return [rule for rule in profile["rules"] if "only" not in rule or rule["only"] in has]


def compile_rules(name: str, rules: Sequence[Mapping[str, Any]]) -> Program:
    """Everything not in `rules` ends the process, on a foreign architecture too."""
    import pyseccomp

    program = pyseccomp.SyscallFilter(defaction=pyseccomp.KILL_PROCESS)
    # also the 32-bit and x32 entries, whose numbers mean other calls
    program.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)
    for rule in rules:
        action = pyseccomp.ALLOW
        if "answer" in rule:
            answer = rule["answer"]  # "0": as if it had succeeded and returned nothing
            action = pyseccomp.ERRNO(0 if answer == "0" else getattr(errno, answer))
        arguments = [_argument(pyseccomp, each) for each in rule.get("args", ())]
        program.add_rule(action, rule["syscall"], *arguments)
    descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "r+b") as file:
        program.export_bpf(file)
        file.seek(0)
        blob = file.read()
    names = sorted({rule["syscall"] for rule in rules})
    return Program(name, hashlib.sha256(blob).hexdigest(), blob, tuple(names))


def _argument(pyseccomp: Any, wanted: Mapping[str, Any]) -> Any:
    value = int(wanted["equals"], 16)
    if "mask" in wanted:
        mask = int(wanted["mask"], 16)
        return pyseccomp.Arg(wanted["index"], pyseccomp.MASKED_EQ, mask, value)
    return pyseccomp.Arg(wanted["index"], pyseccomp.EQ, value)


def read_programs(pid: int) -> tuple[str, ...]:
    """SHA-256 of every seccomp program of this process's main thread, the one loaded first first.

    Needs root (CAP_SYS_ADMIN). Stops the thread for well under a millisecond. Raises OSError:
    EACCES or EINVAL where the kernel does not show programs, ETIMEDOUT when the thread is frozen.
    """
    found: list[str] = []
    failure: list[OSError] = []

    def trace() -> None:
        try:
            found.extend(_trace(pid))
        except OSError as error:
            failure.append(error)

    # ptrace belongs to a thread; whatever goes wrong, the kernel detaches when this one ends
    thread = threading.Thread(target=trace, name=f"seccomp-{pid}")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return tuple(found)


def _trace(pid: int) -> list[str]:
    syscalls.ptrace(syscalls.PTRACE_SEIZE, pid)
    syscalls.ptrace(syscalls.PTRACE_INTERRUPT, pid)
    _wait_stopped(pid)
    programs: list[bytes] = []
    try:
        while True:
            programs.append(syscalls.ptrace_seccomp_filter(pid, len(programs)))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    finally:
        syscalls.ptrace(syscalls.PTRACE_DETACH, pid)
    return [hashlib.sha256(program).hexdigest() for program in programs]


def _wait_stopped(pid: int) -> None:
    """Not a blocking wait: another thread of ours may wait for any child and take the event."""
    deadline = time.monotonic() + _STOP_WAIT
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG | 0x40000000)  # __WALL: also a non-child
        except ChildProcessError as error:
            raise ProcessLookupError(errno.ESRCH, "the process has ended") from error
        if found == pid and status & 0xFF == _STOPPED:
            return
        if found == pid:
            raise ProcessLookupError(errno.ESRCH, "the process has ended")
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "the thread does not stop; is it frozen?")
        time.sleep(0.0001)
