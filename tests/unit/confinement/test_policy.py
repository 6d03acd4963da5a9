"""The jail of a sandbox follows from its Boxfile alone."""

from __future__ import annotations

import pytest

from reconcilers.confinement.policy import (
    MIB,
    TRANSLATION_BUFFER,
    UNLIMITED,
    Program,
    confinement_for,
)
from specs.boxfile import Boxfile

PROGRAM = Program("qemu", "0" * 64, b"", ())


def box(**fields: object) -> Boxfile:
    return Boxfile.model_validate({"name": "agent", **fields})


def rlimit(name: str, **more: int) -> tuple[int, int]:
    made = confinement_for(
        box(data={"size_mib": 64}), uid=5000, gid=5000, kvm=False, program=PROGRAM, **more
    )
    return next((soft, hard) for each, soft, hard in made.rlimits if each == name)


@pytest.mark.parametrize(("uid", "gid"), [(0, 5), (5, 0), (0, 0)])
def test_host_identity_zero_is_refused(uid: int, gid: int) -> None:
    with pytest.raises(ValueError, match="never"):
        confinement_for(box(), uid=uid, gid=gid, kvm=False, program=PROGRAM)


@pytest.mark.parametrize("ram", [128, 512, 4096])
@pytest.mark.parametrize("cpus", [1, 4])
def test_memory_limit_holds_the_guest_and_what_emulation_needs(ram: int, cpus: int) -> None:
    wanted = box(ram_mib=ram, cpus=cpus)
    emulated = confinement_for(wanted, uid=5, gid=5, kvm=False, program=PROGRAM).limits
    real = confinement_for(wanted, uid=5, gid=5, kvm=True, program=PROGRAM).limits
    assert real.memory_bytes >= (ram + 64) * MIB
    assert emulated.memory_bytes >= real.memory_bytes + TRANSLATION_BUFFER


def test_process_and_cpu_limits_grow_with_the_guest() -> None:
    one = confinement_for(box(cpus=1), uid=5, gid=5, kvm=False, program=PROGRAM).limits
    four = confinement_for(box(cpus=4), uid=5, gid=5, kvm=False, program=PROGRAM).limits
    assert four.pids_max == one.pids_max + 3
    assert one.cpu_quota_us == 2 * one.cpu_period_us
    assert four.cpu_quota_us == 5 * four.cpu_period_us


def test_file_size_limit_is_the_disk_and_can_be_raised_later() -> None:
    assert rlimit("fsize") == (64 * MIB, UNLIMITED)


def test_file_size_limit_follows_a_disk_that_is_larger_than_asked_for() -> None:
    assert rlimit("fsize", disk_bytes=100 * MIB) == (100 * MIB, UNLIMITED)


def test_core_dumps_of_guest_memory_are_off() -> None:
    assert rlimit("core") == (0, 0)
