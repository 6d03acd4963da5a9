"""Which accelerator a Boxfile gets, and when it may not start."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from reconcilers import accel
from reconcilers.accel import KVM_DEVICE, KvmProbe, Verdict, choose, needs_probe
from specs.boxfile import Accel, Boxfile, Isolation
from specs.conditions import Reason
from specs.errors import ChannelError, HostError

WORKS, BROKEN = Verdict(True, "booted"), Verdict(False, "it does not boot")


def box(accelerator: str, isolation: str) -> Boxfile:
    return Boxfile(name="oak", accel=Accel(accelerator), isolation=Isolation(isolation))


@pytest.mark.parametrize(
    ("asked", "isolation", "kvm", "want", "refused", "reason"),
    [
        ("auto", "strict", WORKS, "kvm", False, Reason.HardwareVirtualization),
        ("auto", "strict", BROKEN, "tcg", True, Reason.EmulationRefused),
        ("auto", "standard", BROKEN, "tcg", False, Reason.SoftwareEmulation),
        ("tcg", "strict", None, "tcg", False, Reason.SoftwareEmulation),
        ("tcg", "strict", WORKS, "tcg", False, Reason.SoftwareEmulation),
        ("kvm", "standard", BROKEN, "kvm", True, Reason.KvmNotUsable),
        ("kvm", "strict", WORKS, "kvm", False, Reason.HardwareVirtualization),
    ],
)
def test_choice(
    asked: str, isolation: str, kvm: Verdict | None, want: str, refused: bool, reason: Reason
) -> None:
    choice = choose(box(asked, isolation), kvm)
    assert (choice.accel, choice.refused, choice.reason) == (want, refused, reason)


def test_emulation_needs_no_probe() -> None:
    assert not needs_probe(box("tcg", "strict"))
    assert needs_probe(box("auto", "standard"))


@pytest.mark.skipif(not KVM_DEVICE.exists(), reason="no /dev/kvm to probe")
async def test_a_verdict_is_remembered_until_the_kernel_changes(tmp_path: Path) -> None:
    boots = 0

    async def fails() -> None:
        nonlocal boots
        boots += 1
        raise ChannelError("silent")

    memory, binary = tmp_path / "probe.json", Path("/bin/sh")
    first = await KvmProbe(memory, fails).verdict("kernel-1", binary)
    again = await KvmProbe(memory, fails).verdict("kernel-1", binary)
    assert not first.usable
    assert "silent" in first.why
    assert (again, boots) == (first, 1)
    await KvmProbe(memory, fails).verdict("kernel-2", binary)
    assert boots == 2
    await KvmProbe(memory, fails, seconds=60).verdict("kernel-2", binary)
    assert boots == 3, "who is given more time is tried again"


@pytest.mark.skipif(not KVM_DEVICE.exists(), reason="no /dev/kvm to probe")
async def test_a_garbled_memory_is_probed_again(tmp_path: Path) -> None:
    async def works() -> None:
        return None

    memory = tmp_path / "probe.json"
    memory.write_text("{")
    assert (await KvmProbe(memory, works).verdict("k", Path("/bin/sh"))).usable
    assert json.loads(memory.read_text())["usable"] is True


async def test_sandboxes_that_start_together_share_one_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accel, "KVM_DEVICE", Path("/dev/null"))  # any device that is there
    boots = 0

    async def works() -> None:
        nonlocal boots
        boots += 1
        await asyncio.sleep(0.01)

    probe = KvmProbe(tmp_path / "probe.json", works)
    found = await asyncio.gather(*(probe.verdict("k", Path("/bin/sh")) for _ in range(3)))
    assert all(verdict.usable for verdict in found)
    assert boots == 1


@pytest.mark.skipif(not KVM_DEVICE.exists(), reason="no /dev/kvm to probe")
async def test_trouble_of_the_host_is_not_remembered_as_a_kvm_that_does_not_work(
    tmp_path: Path,
) -> None:
    outcomes: list[Exception | None] = [HostError("the disk is full"), None]

    async def boots() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    probe = KvmProbe(tmp_path / "probe.json", boots)
    first = await probe.verdict("k", Path("/bin/sh"))
    assert not first.usable
    assert "the disk is full" in first.why
    assert (await probe.verdict("k", Path("/bin/sh"))).usable
