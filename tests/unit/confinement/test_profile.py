"""The seccomp profile: data with a reason per rule, the same program every time."""

from __future__ import annotations

import pyseccomp
import pytest

from reconcilers.confinement.seccomp import (
    compile_rules,
    load_profile,
    read_profile,
    rules_for,
)
from specs.errors import ConfinementError

PROFILE = read_profile("qemu")


def test_every_rule_has_a_reason_and_a_call_the_kernel_knows() -> None:
    for rule in PROFILE["rules"]:
        assert rule["reason"], rule
        assert pyseccomp.resolve_syscall(pyseccomp.system_arch(), rule["syscall"]) >= 0, rule


def test_no_rule_is_written_twice() -> None:
    keys = [(rule["syscall"], str(rule.get("args"))) for rule in PROFILE["rules"]]
    assert len(keys) == len(set(keys))


def test_call_with_a_condition_has_no_unconditional_rule_beside_it() -> None:
    """libseccomp would let the wider one win, and the condition would mean nothing."""
    wide = {rule["syscall"] for rule in PROFILE["rules"] if not rule.get("args")}
    narrow = {rule["syscall"] for rule in PROFILE["rules"] if rule.get("args")}
    assert wide & narrow == set()


def test_program_does_not_depend_on_the_process_that_compiled_it() -> None:
    """Readback compares hashes after a restart of the controller."""
    rules = rules_for(PROFILE, kvm=False)
    assert compile_rules("qemu", rules).sha256 == compile_rules("qemu", rules).sha256
    assert load_profile("qemu", False).sha256 == compile_rules("qemu", rules).sha256


def test_kvm_rules_are_only_in_the_kvm_program() -> None:
    without, with_kvm = load_profile("qemu", False), load_profile("qemu", True)
    assert set(with_kvm.syscalls) - set(without.syscalls) == {"ioctl"}
    assert with_kvm.sha256 != without.sha256


def test_tap_rules_are_only_in_the_program_of_a_networked_sandbox() -> None:
    plain, networked = (
        load_profile("qemu", False),
        load_profile("qemu", False, frozenset({"network"})),
    )
    assert set(networked.syscalls) - set(plain.syscalls) == {"ioctl"}
    added = [rule for rule in PROFILE["rules"] if rule.get("only") == "network"]
    assert added and all(rule["args"] for rule in added)


def test_profile_that_does_not_exist_is_a_confinement_error() -> None:
    with pytest.raises(ConfinementError) as caught:
        load_profile("no-such", False)
    assert caught.value.layer == "seccomp"
