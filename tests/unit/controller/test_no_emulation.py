"""What policy.toml says of emulation holds for the machines of box itself, too; none is started."""

from __future__ import annotations

import pytest

from controller.lockfile import ControllerLock
from controller.loop import Controller
from reconcilers import disk as disks
from reconcilers import microvm
from reconcilers.facts import Image
from reconcilers.host import Host
from reconcilers.layout import Layout
from reconcilers.throwaway import BUILDS, TRANSFERS, Purpose, Throwaways, Work
from specs.boxfile import Accel, Boxfile, Isolation
from specs.ceiling import Ceiling
from specs.errors import HostError, RefusedByPolicy
from tests.unit.programs import needs_mke2fs
from tests.unit.reconcilers.hosts import host_of

AUTO = Boxfile(name="aa", accel=Accel.auto, isolation=Isolation.standard)


@pytest.mark.parametrize("purpose", [BUILDS, TRANSFERS], ids=lambda purpose: purpose.name)
@pytest.mark.parametrize("accel", [Accel.auto, Accel.tcg])
@needs_mke2fs
async def test_no_machine_is_emulated_where_that_is_forbidden(
    layout: Layout, purpose: Purpose, accel: Accel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything of it left: no UID is claimed, no control group made."""
    monkeypatch.setattr(Host, "boot", lambda host, features: None)
    monkeypatch.setattr(microvm, "start", pytest.fail)
    host = host_of(layout)
    host.no_emulation = lambda box: "allow_emulation: software emulation is forbidden"
    disks.create(layout.disks("aa"), 16)
    disk = disks.observe(layout.disks("aa"))
    assert disk is not None
    box = AUTO.model_copy(update={"accel": accel})
    work = Work(box, Image("d", "s", layout.images / "none"), disk)
    machines = Throwaways(host, purpose)
    with pytest.raises(RefusedByPolicy, match="allow_emulation") as caught:
        async with machines.running(work):
            pytest.fail("it runs")
    assert "emulated" in caught.value.message and "policy.toml" in caught.value.fix
    assert machines.host.claims() == {}


async def test_the_policy_is_asked_as_it_is_now(layout: Layout) -> None:
    host = host_of(layout)
    with ControllerLock.acquire(layout.lock) as lock:
        controller = Controller(layout, host, lock)
        tcg = AUTO.model_copy(update={"accel": Accel.tcg})
        assert [host.no_emulation(each) for each in (AUTO, tcg)] == ["", ""]
        controller.inventory.ceiling = Ceiling(allow_emulation=False)
        assert all("allow_emulation" in host.no_emulation(each) for each in (AUTO, tcg))
        # What was accepted goes on while it cannot be read, but what that means here was not.
        controller.inventory.ceiling = HostError("garbled")
        assert "garbled" in host.no_emulation(AUTO) and host.no_emulation(tcg) == ""
