"""What a difference between two Boxfiles does to the VM."""

from __future__ import annotations

from typing import Any

import pytest

from specs.boxfile import Boxfile
from specs.change import changes


def box(**fields: Any) -> Boxfile:
    return Boxfile(name="fern", **fields)


def effects(old: Boxfile | None, new: Boxfile | None) -> dict[str, str]:
    return {change.field: change.effect for change in changes(old, new)}


def test_new_sandbox_is_created_with_its_written_fields() -> None:
    found = changes(None, box(cpus=4, data={"size_mib": 10_000}))
    assert [(c.field, c.old, c.new, c.effect) for c in found] == [
        ("name", "", "fern", "create"),
        ("cpus", "", "4", "create"),
        ("data.size_mib", "", "10000", "create"),
    ]


def test_sandbox_without_a_file_is_deleted() -> None:
    assert effects(box(cpus=4), None) == {"name": "delete", "cpus": "delete"}


def test_no_sandbox_at_all_has_no_changes() -> None:
    assert changes(None, None) == ()


def test_default_written_out_is_no_change() -> None:
    assert changes(box(), box(cpus=2, data={"on_delete": "keep"})) == ()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"timeout_seconds": 5}, "timeout_seconds"),
        ({"env": {"A": "x"}}, "env.A"),
        ({"labels": {"team": "x"}}, "labels.team"),
        ({"restart": "never"}, "restart"),
        ({"data": {"on_delete": "erase"}}, "data.on_delete"),
        ({"data": {"size_mib": 2048}}, "data.size_mib"),
    ],
)
def test_what_a_live_vm_can_take_is_changed_in_place(fields: dict[str, Any], field: str) -> None:
    assert effects(box(), box(**fields)) == {field: "in-place"}
    assert effects(box(**fields), box()) == {field: "in-place"}


@pytest.mark.parametrize(
    "fields",
    [
        {"cpus": 4},
        {"ram_mib": 1024},
        {"accel": "tcg"},
        {"isolation": "standard"},
        {"readonly": True},
        {"backend": "qemu"},
    ],
)
def test_what_is_fixed_at_start_replaces_the_vm(fields: dict[str, Any]) -> None:
    (field,) = fields
    assert effects(box(), box(**fields)) == {field: "replace"}


def test_state_stops_and_starts_and_other_fields_ride_along() -> None:
    assert effects(box(), box(state="stopped", cpus=4)) == {"state": "stop", "cpus": "none"}
    assert effects(box(state="stopped"), box(cpus=4)) == {"state": "start", "cpus": "none"}


def test_stopped_sandbox_has_no_vm_to_replace() -> None:
    assert effects(box(state="stopped"), box(state="stopped", cpus=4)) == {"cpus": "none"}


@pytest.mark.parametrize(
    "fields",
    [
        {"packages": ["curl"]},
        {"run": ["make"]},
        {"blueprint": {"runcmd": ["make"]}},
        {"blueprint": {"users": [{"name": "ada"}]}},
    ],
)
def test_another_recipe_replaces_the_vm_and_so_does_its_environment(fields: dict[str, Any]) -> None:
    (field,) = fields
    assert effects(box(), box(**fields)) == {field: "replace"}
    assert effects(box(**fields), box()) == {field: "replace"}
    assert effects(box(**fields), box(**fields, env={"A": "x"})) == {"env.A": "replace"}
    stopped = {**fields, "state": "stopped"}
    assert effects(box(**stopped), box(**stopped, env={"A": "x"})) == {"env.A": "none"}


def test_what_makes_the_same_image_changes_nothing() -> None:
    old, new = box(packages=["a", "b"]), box(packages=["b", "a"])
    assert effects(old, new) == {"packages": "none"}
    assert effects(box(), box(pkgmgr="apt")) == {"pkgmgr": "none"}
    assert effects(box(run=["x"]), box(run=["x"], pkgmgr="apt")) == {"pkgmgr": "none"}
    assert effects(box(packages=["a"]), box(packages=["a"], pkgmgr="apt")) == {"pkgmgr": "replace"}
    assert effects(box(), box(blueprint={})) == {"blueprint": "none"}


def test_environment_without_a_recipe_any_more_is_changed_in_place() -> None:
    assert effects(box(run=["x"]), box(env={"A": "1"})) == {"run": "replace", "env.A": "in-place"}


def test_empty_and_absent_variable_differ() -> None:
    (change,) = changes(box(), box(env={"A": ""}))
    assert (change.field, change.old, change.new) == ("env.A", "", "")


def test_changed_removed_and_kept_variables_are_told_apart() -> None:
    old, new = box(env={"A": "1", "B": "2", "C": "3"}), box(env={"A": "1", "B": "x"})
    assert [(c.field, c.old, c.new) for c in changes(old, new)] == [
        ("env.B", "2", "x"),
        ("env.C", "3", ""),
    ]
