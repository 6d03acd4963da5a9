"""The planner is pure, so what it does in each situation is a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers import steps
from reconcilers.facts import MIB, Disk, Guest, Image, Observed, Unknown, Vmm
from reconcilers.facts import Network as FactsOfNetwork
from reconcilers.plan import Desired, plan
from specs.boxfile import Boxfile, Data, Restart, State
from specs.conditions import Reason
from specs.reading import Reading

BOX = Boxfile(name="oak", data=Data(size_mib=64))
KEY = "k" * 64
WANT = Desired(BOX, KEY)
DISK = Disk(Path("/d/base.raw"), "raw", 64 * MIB, 0, 0, 0o600, private=True)
IMAGE = Image("d", "s", Path("/i"))


def reading(mend: str, *, ok: bool = False) -> Reading:
    assert mend in ("in place", "replace")
    return Reading("cgroup", "memory", "1", "2", ok, "/f", "live", mend)  # type: ignore[arg-type]


VMM = Vmm(10, 20, KEY, frozen=False, readings=(reading("in place", ok=True),))
CONVERGED = Observed(
    image=IMAGE,
    uid=70000,
    cgroup=True,
    disk=DISK,
    vmm=VMM,
    guest=Guest("6.1", "b", 64 * MIB),
    runtime=True,
    had_disk=True,
)


def kinds(desired: Desired, observed: Observed) -> list[str]:
    return [type(step).__name__ for step in plan(desired, observed).steps]


def test_nothing_is_planned_for_a_converged_sandbox() -> None:
    assert plan(WANT, CONVERGED).steps == ()


def test_a_new_sandbox_gets_its_resources_in_order() -> None:
    assert kinds(WANT, Observed()) == [
        "BuildImage",
        "ClaimIdentity",
        "CreateCgroup",
        "CreateDisk",
        "LaunchVmm",
        "ConnectGuest",
    ]


def test_a_dead_vmm_is_started_again_and_nothing_else_changes() -> None:
    assert kinds(WANT, replace(CONVERGED, vmm=None, guest=None)) == ["LaunchVmm", "ConnectGuest"]


def test_a_reading_that_can_change_in_place_is_mended_without_a_restart() -> None:
    vmm = replace(VMM, readings=(reading("in place"),))
    assert kinds(WANT, replace(CONVERGED, vmm=vmm)) == ["MendReadings"]


def test_a_vmm_without_a_wall_is_killed_not_asked() -> None:
    vmm = replace(VMM, readings=(reading("in place"), reading("replace")))
    planned = plan(WANT, replace(CONVERGED, vmm=vmm)).steps
    assert isinstance(planned[0], steps.StopVmm)
    assert not planned[0].graceful
    assert [type(s).__name__ for s in planned[1:]] == ["LaunchVmm", "ConnectGuest"]


@pytest.mark.parametrize(
    "vmm",
    [None, replace(VMM, key="o" * 64), replace(VMM, readings=(reading("replace"),))],
    ids=["none", "another", "without a wall"],
)
def test_a_vm_starts_from_the_image_of_its_key(vmm: Vmm | None) -> None:
    """Its base may mean another one until the former VM has ended."""
    planned = plan(replace(WANT, image="1" * 64), replace(CONVERGED, vmm=vmm)).steps
    [launch] = [each for each in planned if isinstance(each, steps.LaunchVmm)]
    assert (launch.image, launch.key) == ("1" * 64, KEY)


@pytest.mark.parametrize("mend", ["in place", "replace"])
def test_what_no_boxfile_asked_for_is_drift_even_when_nobody_knows_what_converged(
    mend: str,
) -> None:
    vmm = replace(VMM, readings=(reading(mend),))
    assert plan(WANT, replace(CONVERGED, vmm=vmm)).steps[0].unasked
    # another launch key: its Boxfile may have asked for other walls while nobody looked
    asked = replace(CONVERGED, vmm=replace(vmm, key="o" * 64))
    assert not any(step.unasked for step in plan(WANT, asked).steps)
    assert not any(step.unasked for step in plan(WANT, replace(CONVERGED, vmm=None)).steps)


def test_changed_settings_replace_the_vmm_gracefully() -> None:
    planned = plan(Desired(BOX, "other"), CONVERGED).steps
    assert isinstance(planned[0], steps.StopVmm)
    assert planned[0].graceful


BRIDGED = replace(WANT, box=BOX.model_copy(update={"network": "bridge"}), key="other")
NO_NETWORK = FactsOfNetwork(
    readings=(Reading("network", "network", "network", "nothing", False, "", "live", "in place"),)
)


def test_a_network_is_made_before_the_vm_that_lacks_it_is_stopped() -> None:
    """When the host cannot give it, making it fails, and the former VM runs on."""
    observed = replace(CONVERGED, vmm=replace(VMM, outdated=True), network=NO_NETWORK)
    planned = plan(BRIDGED, observed).steps
    names = [type(step).__name__ for step in planned]
    assert names == ["RaiseNetwork", "StopVmm", "LaunchVmm", "ConnectGuest"]
    assert isinstance(planned[1], steps.StopVmm) and planned[1].graceful


def test_a_vm_without_a_wall_waits_for_no_network() -> None:
    vmm = replace(VMM, outdated=True, readings=(reading("replace"),))
    observed = replace(CONVERGED, vmm=vmm, network=NO_NETWORK)
    assert kinds(BRIDGED, observed)[:2] == ["StopVmm", "RaiseNetwork"]


def test_a_record_whose_settings_are_not_those_of_its_key_is_not_believed() -> None:
    assert kinds(WANT, replace(CONVERGED, vmm=replace(VMM, outdated=True)))[0] == "StopVmm"


HELD = replace(WANT, held="mounts[0].host /src: it does not exist")


def test_a_vm_is_kept_in_order_while_a_changed_boxfile_cannot_be_had() -> None:
    held = plan(HELD, replace(CONVERGED, vmm=replace(VMM, outdated=True)))
    assert held.steps == ()
    assert held.blocked is not None and held.blocked.reason is Reason.MountRefused
    vmm = replace(VMM, outdated=True, frozen=True, readings=(reading("in place"),))
    worn = replace(CONVERGED, vmm=vmm, guest=None, strays=(99,), image=None, uid=None)
    assert kinds(HELD, worn) == ["KillStrays", "MendReadings", "ThawVmm", "ConnectGuest"]


def test_a_held_vm_without_a_wall_goes_and_none_is_started() -> None:
    vmm = replace(VMM, outdated=True, readings=(reading("replace"),))
    planned = plan(HELD, replace(CONVERGED, vmm=vmm)).steps
    assert isinstance(planned[0], steps.StopVmm) and not planned[0].graceful
    assert planned[0].field == "cgroup.memory"
    assert not any(isinstance(step, steps.LaunchVmm) for step in planned)
    absent = replace(CONVERGED, vmm=None, guest=None)
    assert kinds(HELD, absent) == ["RemoveCgroup", "RemoveRuntime"]


def test_a_frozen_vmm_is_thawed() -> None:
    frozen = replace(CONVERGED, vmm=replace(VMM, frozen=True), guest=None)
    assert kinds(WANT, frozen) == ["ThawVmm", "ConnectGuest"]


def test_paused_cpus_run_on_and_are_never_given_up() -> None:
    paused = replace(CONVERGED, paused="io-error", guest=None)
    for desired in (WANT, replace(WANT, give_up_guest=True)):
        assert kinds(desired, paused) == ["ResumeVmm", "ConnectGuest"]


def test_strays_are_killed_before_a_vmm_is_started() -> None:
    planned = kinds(WANT, replace(CONVERGED, vmm=None, guest=None, strays=(99,)))
    assert planned.index("KillStrays") < planned.index("LaunchVmm")


def test_a_disk_that_was_made_and_is_gone_is_reported_not_remade() -> None:
    made = plan(WANT, replace(CONVERGED, disk=None, vmm=None, guest=None))
    assert made.steps == ()
    assert made.blocked is not None
    assert made.blocked.reason is Reason.DiskLost


def test_a_disk_is_never_shrunk() -> None:
    smaller = Desired(BOX.model_copy(update={"data": Data(size_mib=32)}), KEY)
    made = plan(smaller, CONVERGED)
    assert made.steps == ()
    assert made.blocked is not None
    assert made.blocked.reason is Reason.DiskShrinkRefused


def test_a_disk_grows_under_a_running_vm() -> None:
    larger = Desired(BOX.model_copy(update={"data": Data(size_mib=128)}), KEY)
    assert kinds(larger, CONVERGED) == ["GrowDisk", "ResizeData"]


def test_a_loose_disk_file_is_given_back_its_owner() -> None:
    loose = replace(CONVERGED, disk=replace(DISK, uid=1000, private=False))
    assert kinds(WANT, loose) == ["MendDisk"]


def test_stopped_keeps_disk_and_identity() -> None:
    stopped = Desired(BOX.model_copy(update={"state": State.stopped}))
    assert kinds(stopped, CONVERGED) == ["StopVmm", "RemoveCgroup", "RemoveRuntime"]


@pytest.mark.parametrize(
    ("erase", "data_step"), [(True, ["EraseDisk"]), (False, ["SetDiskAside"]), (None, [])]
)
def test_a_deleted_sandbox_frees_everything(erase: bool | None, data_step: list[str]) -> None:
    gone = Desired(None, erase=erase)
    wanted = ["StopVmm", "RemoveCgroup", "RemoveRuntime", *data_step, "ReleaseIdentity"]
    assert kinds(gone, CONVERGED) == wanted


def test_restart_never_leaves_a_dead_vmm_dead() -> None:
    box = BOX.model_copy(update={"restart": Restart.never})
    dead = replace(CONVERGED, vmm=None, guest=None)
    assert "LaunchVmm" not in kinds(Desired(box, KEY, suspended=True), dead)


def test_a_guest_that_stays_silent_is_given_up() -> None:
    silent = replace(CONVERGED, guest=None)
    assert kinds(WANT, silent) == ["ConnectGuest"]
    assert kinds(replace(WANT, give_up_guest=True), silent)[0] == "StopVmm"


UNREADABLE = Unknown("cannot be read")


@pytest.mark.parametrize(
    "unknown",
    [
        replace(CONVERGED, image=UNREADABLE),
        replace(CONVERGED, cgroup=UNREADABLE),
        replace(CONVERGED, disk=UNREADABLE),
        replace(CONVERGED, vmm=UNREADABLE),
    ],
)
@pytest.mark.parametrize("desired", [WANT, Desired(None, erase=True)])
def test_what_is_unknown_is_never_acted_upon(unknown: Observed, desired: Desired) -> None:
    made = plan(desired, unknown)
    assert made.steps == ()
    assert made.blocked is not None
    assert "cannot be read" in made.blocked.message


observations = st.builds(
    Observed,
    image=st.sampled_from([None, IMAGE]),
    uid=st.sampled_from([None, 70000]),
    cgroup=st.booleans(),
    disk=st.sampled_from([None, DISK, replace(DISK, private=False)]),
    vmm=st.sampled_from(
        [None, VMM, replace(VMM, frozen=True), replace(VMM, readings=(reading("replace"),))]
    ),
    strays=st.sampled_from([(), (99,)]),
    guest=st.sampled_from([None, CONVERGED.guest]),
    runtime=st.booleans(),
    had_disk=st.booleans(),
)


@given(observations)
def test_a_disk_is_only_ever_removed_for_a_deleted_sandbox(observed: Observed) -> None:
    for desired in (WANT, Desired(BOX.model_copy(update={"state": State.stopped}))):
        removing = (steps.EraseDisk, steps.SetDiskAside)
        assert not any(isinstance(s, removing) for s in plan(desired, observed).steps)


@given(observations)
def test_at_most_one_vmm_is_started_and_never_beside_a_live_one(observed: Observed) -> None:
    planned = plan(WANT, observed).steps
    launches = [i for i, s in enumerate(planned) if isinstance(s, steps.LaunchVmm)]
    assert len(launches) <= 1
    if launches and observed.vmm is not None:
        assert any(isinstance(s, steps.StopVmm) for s in planned[: launches[0]])


LOOKS = replace(WANT, look_up=True)


def test_what_the_base_means_is_looked_up_before_another_vm_starts_and_only_then() -> None:
    assert kinds(LOOKS, CONVERGED) == []
    assert kinds(LOOKS, replace(CONVERGED, vmm=replace(VMM, frozen=True))) == ["ThawVmm"]
    for observed in (Observed(), replace(CONVERGED, vmm=None, guest=None)):
        [step] = plan(LOOKS, observed).steps
        assert isinstance(step, steps.BuildImage)
        assert step.again and step.consequence, "what died is the drift, not this"
    [step] = plan(LOOKS, replace(CONVERGED, vmm=replace(VMM, key="other"))).steps
    assert isinstance(step, steps.BuildImage), "the former VM runs on meanwhile"


def test_a_vm_without_a_wall_does_not_run_on_while_a_registry_is_asked() -> None:
    vmm = replace(VMM, readings=(reading("replace"),))
    assert kinds(LOOKS, replace(CONVERGED, vmm=vmm)) == ["StopVmm"]


def test_a_sandbox_that_cannot_start_asks_no_registry() -> None:
    lost = replace(CONVERGED, vmm=None, guest=None, disk=None, had_disk=True)
    found = plan(LOOKS, lost)
    assert not any(isinstance(step, steps.BuildImage) for step in found.steps)
    assert found.blocked is not None
