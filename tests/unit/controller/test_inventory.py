"""From files in a real folder to entries: what is accepted, kept, held and let go."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from controller import prune
from controller.inventory import Inventory
from controller.records import Record
from controller.store import Store
from reconcilers.layout import Layout
from specs.boxfile import Boxfile
from specs.conditions import Reason
from specs.errors import HostError, RefusedByPolicy


@pytest.fixture
def inventory(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    # The pause for editors is tested in test_prune; here every scan is to decide at once.
    monkeypatch.setattr(prune, "SETTLE_SECONDS", 0.0)
    return Inventory(layout, Store(layout))


def put(layout: Layout, filename: str, text: str) -> None:
    (layout.boxes / filename).write_text(text)


def test_a_new_file_is_accepted_once(layout: Layout, inventory: Inventory) -> None:
    put(layout, "oak.yaml", "cpus: 1\n")
    assert inventory.refresh() == {"oak"}
    entry = inventory.entries["oak"]
    assert (entry.record.generation, entry.verdict.reason) == (1, Reason.Accepted)
    assert inventory.refresh() == set()


def test_touching_a_file_or_adding_a_comment_changes_nothing(
    layout: Layout, inventory: Inventory
) -> None:
    put(layout, "oak.yaml", "cpus: 1\n")
    inventory.refresh()
    os.utime(layout.boxes / "oak.yaml")
    assert inventory.refresh() == set()
    put(layout, "oak.yaml", "# the same\ncpus: 1\n")
    assert inventory.refresh() == set()
    assert inventory.entries["oak"].record.generation == 1


def test_a_swapped_link_of_links_is_one_update(layout: Layout, inventory: Inventory) -> None:
    """W2: a ConfigMap's way of changing a file."""
    boxes = layout.boxes
    for version, ram in (("..v1", 256), ("..v2", 512), ("..v3", 512)):
        (boxes / version).mkdir()
        (boxes / version / "fern.yaml").write_text(f"ram_mib: {ram}\n")
    (boxes / "..data").symlink_to("..v1")
    (boxes / "fern.yaml").symlink_to("..data/fern.yaml")
    assert inventory.refresh() == {"fern"}
    seen = []
    for version in ("..v2", "..v3"):
        (boxes / "..new").symlink_to(version)
        (boxes / "..new").rename(boxes / "..data")
        seen.append(inventory.refresh())
    assert seen == [{"fern"}, set()]
    assert set(inventory.entries) == {"fern"}
    assert inventory.entries["fern"].record.generation == 2


def test_a_half_written_file_leaves_the_last_good_spec_in_force(
    layout: Layout, inventory: Inventory
) -> None:
    """W3 (b): truncated, then broken, then whole."""
    put(layout, "moss.yaml", "cpus: 1\n")
    inventory.refresh()
    for broken in ("", "cpus: [1\n"):
        put(layout, "moss.yaml", broken)
        inventory.refresh()
        entry = inventory.entries["moss"]
        assert entry.verdict.reason is Reason.InvalidBoxfile
        assert entry.box is not None
        assert entry.box.cpus == 1
        assert entry.record.generation == 1
    put(layout, "moss.yaml", "cpus: 2\n")
    assert inventory.refresh() == {"moss"}
    entry = inventory.entries["moss"]
    assert entry.box is not None
    assert (entry.box.cpus, entry.record.generation) == (2, 2)


def test_a_duplicate_key_keeps_the_last_good_spec(layout: Layout, inventory: Inventory) -> None:
    """Y4: the later, weaker value never comes into force."""
    put(layout, "elm.yaml", "isolation: strict\n")
    inventory.refresh()
    put(layout, "elm.yaml", "isolation: strict\n" + "# pad\n" * 40 + "isolation: standard\n")
    inventory.refresh()
    entry = inventory.entries["elm"]
    assert entry.verdict.reason is Reason.InvalidBoxfile
    assert "elm.yaml:42:" in entry.verdict.message
    assert "1" in entry.verdict.message
    assert entry.box is not None
    assert entry.box.isolation == "strict"


def test_a_twin_is_a_conflict_and_the_first_stays_in_force(
    layout: Layout, inventory: Inventory
) -> None:
    """W6: the recorded file keeps its place whatever sorts first."""
    put(layout, "pine.yml", "cpus: 1\n")
    inventory.refresh()
    put(layout, "pine.yaml", "cpus: 2\n")
    inventory.refresh()
    entry = inventory.entries["pine"]
    assert entry.verdict.reason is Reason.Conflict
    assert "pine.yaml" in entry.verdict.message
    assert entry.record.generation == 1
    (layout.boxes / "pine.yaml").unlink()
    inventory.refresh()
    assert inventory.entries["pine"].verdict.ok


def test_a_ceiling_refuses_and_the_last_good_spec_stays(
    layout: Layout, inventory: Inventory
) -> None:
    put(layout, "oak.yaml", "cpus: 1\n")
    layout.policy.write_text("max_cpus = 2\n")
    inventory.refresh()
    put(layout, "oak.yaml", "cpus: 4\n")
    inventory.refresh()
    entry = inventory.entries["oak"]
    assert entry.verdict.reason is Reason.RefusedByPolicy
    assert "max_cpus" in entry.verdict.message
    assert entry.box is not None
    assert entry.box.cpus == 1
    assert not entry.over_ceiling


def test_a_ceiling_lowered_below_a_running_spec_stops_it(
    layout: Layout, inventory: Inventory
) -> None:
    put(layout, "oak.yaml", "cpus: 4\n")
    inventory.refresh()
    layout.policy.write_text("max_cpus = 2\n")
    assert inventory.refresh() == {"oak"}
    assert inventory.entries["oak"].over_ceiling
    layout.policy.unlink()
    assert inventory.refresh() == {"oak"}
    assert not inventory.entries["oak"].over_ceiling


def test_a_total_counts_what_the_same_scan_accepted_or_brought_back(
    layout: Layout, inventory: Inventory
) -> None:
    layout.policy.write_text("max_total_cpus = 5\n")
    for name in ("ash", "elm", "oak"):
        put(layout, f"{name}.yaml", "cpus: 2\n")
    inventory.refresh()
    assert [inventory.entries[n].verdict.ok for n in ("ash", "elm", "oak")] == [True, True, False]
    (layout.boxes / "elm.yaml").unlink()
    inventory.refresh()
    inventory.refresh()
    assert inventory.entries["elm"].removing and inventory.entries["oak"].verdict.ok
    put(layout, "elm.yaml", "cpus: 2\n")
    inventory.refresh()
    assert not inventory.entries["elm"].verdict.ok
    put(layout, "elm.yaml", "cpus: 1\n")
    inventory.refresh()
    assert inventory.entries["elm"].verdict.ok


def test_a_broken_ceiling_refuses_everything_new(layout: Layout, inventory: Inventory) -> None:
    layout.policy.write_text("max_cpus = 'two'\n")
    put(layout, "oak.yaml", "cpus: 1\n")
    inventory.refresh()
    entry = inventory.entries["oak"]
    assert entry.verdict.reason is Reason.RefusedByPolicy
    assert entry.box is None


def test_a_removed_file_lets_its_sandbox_go(layout: Layout, inventory: Inventory) -> None:
    put(layout, "oak.yaml", "")
    put(layout, "elm.yaml", "cpus: 1\n")
    inventory.refresh()
    (layout.boxes / "elm.yaml").unlink()
    inventory.refresh()
    assert inventory.entries["elm"].removing
    assert inventory.entries["elm"].record.vanished_at is not None
    put(layout, "elm.yaml", "cpus: 1\n")
    inventory.refresh()
    entry = inventory.entries["elm"]
    assert not entry.removing
    assert entry.record.vanished_at is None


def test_a_removal_under_way_goes_on_after_a_restart_unless_the_file_is_back(
    layout: Layout, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ash", "elm", "fir", "oak", "yew"):
        put(layout, f"{name}.yaml", "state: stopped\n")
    inventory.refresh()
    for name in ("elm", "oak"):
        (layout.boxes / f"{name}.yaml").unlink()
    inventory.refresh()
    put(layout, "oak.yaml", "state: stopped\n")
    monkeypatch.setattr(prune, "SETTLE_SECONDS", 60.0)  # the first scan decides nothing
    restarted = Inventory(layout, Store(layout))
    restarted.load()
    restarted.refresh()
    elm, oak = restarted.entries["elm"], restarted.entries["oak"]
    assert elm.removing and elm.box is None
    assert elm.gone_since is not None and time.monotonic() - elm.gone_since < 30
    assert not oak.removing and oak.record.vanished_at is None


def test_a_missing_folder_removes_nothing(layout: Layout, inventory: Inventory) -> None:
    put(layout, "oak.yaml", "cpus: 1\n")
    inventory.refresh()
    layout.boxes.rename(layout.home / "elsewhere")
    inventory.refresh()
    entry = inventory.entries["oak"]
    assert not entry.removing
    assert entry.verdict.reason is Reason.SourceMissing
    (layout.home / "elsewhere").rename(layout.boxes)
    inventory.refresh()
    assert inventory.entries["oak"].verdict.ok


def test_another_folder_in_its_place_removes_nothing(layout: Layout, inventory: Inventory) -> None:
    put(layout, "oak.yaml", "cpus: 1\n")
    inventory.refresh()
    layout.boxes.rename(layout.home / "elsewhere")
    layout.boxes.mkdir()
    inventory.refresh()
    assert not inventory.entries["oak"].removing
    assert inventory.entries["oak"].verdict.reason is Reason.SourceMissing


def test_many_at_once_are_held_also_over_a_restart_until_confirmed(
    layout: Layout, inventory: Inventory
) -> None:
    names = ["ash", "elm", "fir", "oak"]
    for name in names:
        put(layout, f"{name}.yaml", "state: stopped\n")
    inventory.refresh()
    for name in names[:3]:
        (layout.boxes / f"{name}.yaml").unlink()
    inventory.refresh()
    assert set(inventory.held()) == set(names[:3])
    restarted = Inventory(layout, Store(layout))
    restarted.load()
    restarted.refresh()
    assert not any(entry.removing for entry in restarted.entries.values())
    restarted.vanishing.confirm()
    restarted.refresh()
    assert {n for n, e in restarted.entries.items() if e.removing} == set(names[:3])


def test_what_another_folder_lacks_is_listed_and_goes_when_confirmed(
    layout: Layout, inventory: Inventory
) -> None:
    for name in ("elm", "oak"):
        put(layout, f"{name}.yaml", "state: stopped\n")
    inventory.refresh()
    layout.boxes.rename(layout.home / "before")
    layout.boxes.mkdir()
    put(layout, "elm.yaml", "state: stopped\n")
    inventory.refresh()
    assert list(inventory.held()) == ["oak"]
    assert "another one" in inventory.held()["oak"]
    inventory.vanishing.confirm()
    inventory.refresh()
    assert {n for n, e in inventory.entries.items() if e.removing} == {"oak"}
    assert inventory.held() == {}


def test_a_missing_folder_is_nothing_to_confirm(layout: Layout, inventory: Inventory) -> None:
    for name in ("ash", "elm", "oak"):
        put(layout, f"{name}.yaml", "state: stopped\n")
    inventory.refresh()
    for name in ("ash", "elm", "oak"):
        (layout.boxes / f"{name}.yaml").unlink()
    inventory.refresh()
    assert set(inventory.held()) == {"ash", "elm", "oak"}
    layout.boxes.rmdir()
    inventory.refresh()
    assert inventory.held() == {}


def test_what_a_full_disk_kept_from_being_recorded_is_recorded_by_the_next_scan(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(layout)
    inventory = Inventory(layout, store)
    put(layout, "oak.yaml", "cpus: 1\n")

    def full(record: Record) -> bool:
        raise HostError("cannot write: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store, "save", full)
        with pytest.raises(HostError):
            inventory.refresh()
    assert inventory.refresh() == {"oak"}
    found = Store(layout).load("oak")
    assert isinstance(found, Record)
    assert found.spec == Boxfile(name="oak", cpus=1)


def test_erasing_by_hand_needs_the_ceilings_leave(layout: Layout, inventory: Inventory) -> None:
    put(layout, "oak.yaml", "cpus: 1\n")
    inventory.refresh()
    inventory.may_erase("oak")
    layout.policy.write_text("allow_erase = false\n")
    with pytest.raises(RefusedByPolicy, match="allow_erase"):
        inventory.may_erase("oak")


def test_a_garbled_record_is_set_aside_and_its_boxfile_read_again(
    layout: Layout, inventory: Inventory
) -> None:
    put(layout, "oak.yaml", "cpus: 1\n")
    inventory.refresh()
    (layout.state / "oak.toml").write_text("= garbage")
    restarted = Inventory(layout, Store(layout))
    assert len(restarted.load()) == 1
    restarted.refresh()
    assert restarted.entries["oak"].record.generation == 1
    assert any("garbled" in path.name for path in layout.state.iterdir())


def test_five_hundred_unchanged_files_are_scanned_quickly(
    layout: Layout, inventory: Inventory
) -> None:
    for number in range(500):
        put(layout, f"b{number}.yaml", "state: stopped\n")
    inventory.refresh()
    for entry in inventory.entries.values():
        entry.record = replace(entry.record)
    time.sleep(2.1)  # files changed less than 2 s ago are read again by design
    inventory.refresh()
    began = time.process_time()
    assert inventory.refresh() == set()
    assert time.process_time() - began < 0.5
