"""The prune guard: properties of the pure decision, and the stories behind them."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from controller.prune import (
    BURST_SECONDS,
    SETTLE_SECONDS,
    Decision,
    VanishTimes,
    decide,
)
from controller.records import Record

NAMES = st.sets(st.sampled_from(string.ascii_lowercase), max_size=12)
LONG_AGO = -1000.0


def inventory_of(names: set[str], held: set[str] | None = None) -> dict[str, Record]:
    return {name: Record(name, held=name in (held or set())) for name in names}


def judge(
    inventory: dict[str, Record],
    present: set[str],
    *,
    folder_ok: bool = True,
    same_folder: bool = True,
    vanished: dict[str, float] | None = None,
    confirmed: bool = False,
    now: float = 0.0,
) -> Decision:
    return decide(
        inventory,
        present,
        folder_ok=folder_ok,
        same_folder=same_folder,
        recent_vanish=vanished or {},
        confirmed=confirmed,
        now=now,
    )


@given(NAMES, NAMES, st.booleans(), st.booleans())
def test_a_folder_that_cannot_be_read_removes_nothing(
    names: set[str], present: set[str], same: bool, confirmed: bool
) -> None:
    decision = judge(
        inventory_of(names), present, folder_ok=False, same_folder=same, confirmed=confirmed
    )
    assert not decision.remove
    assert not decision.adopt_folder
    assert decision.held == names


@given(NAMES, NAMES)
def test_another_folder_removes_nothing_whatever_the_count(
    names: set[str], present: set[str]
) -> None:
    vanished = {name: LONG_AGO * (1 + i) for i, name in enumerate(sorted(names - present))}
    decision = judge(inventory_of(names), present, same_folder=False, vanished=vanished)
    assert not decision.remove
    assert decision.held == names - present
    # It becomes the known folder only by holding everything that is known.
    assert decision.adopt_folder == (names <= present)


@given(
    NAMES,
    NAMES,
    NAMES,
    st.dictionaries(st.sampled_from(string.ascii_lowercase), st.floats(-300, 0)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_every_missing_name_has_exactly_one_fate_and_no_present_one_is_removed(
    names: set[str],
    present: set[str],
    held: set[str],
    vanished: dict[str, float],
    folder_ok: bool,
    same: bool,
    confirmed: bool,
) -> None:
    decision = judge(
        inventory_of(names, held),
        present,
        folder_ok=folder_ok,
        same_folder=same,
        vanished=vanished,
        confirmed=confirmed,
    )
    assert not decision.remove & present
    if folder_ok:
        parts = [decision.remove, decision.held, decision.waiting]
        assert sum(len(part) for part in parts) == len(names - present)
        assert frozenset().union(*parts) == names - present
    assert (decision.recheck_after is None) == (not decision.waiting)
    assert bool(decision.reason) == bool(decision.held) or not folder_ok
    assert decision.marked <= names


@given(NAMES, NAMES, st.floats(0, 50))
def test_over_half_and_more_than_two_at_once_are_held_for_ever(
    names: set[str], present: set[str], later: float
) -> None:
    gone = names - present
    if len(gone) <= 2 or 2 * len(gone) <= len(names):
        return
    inventory = inventory_of(names)
    first = judge(inventory, present, vanished=dict.fromkeys(gone, 0.0), now=0.0)
    assert first.held == gone and first.marked == gone and not first.remove
    inventory = inventory_of(names, set(first.marked))
    # Much later, after a restart, and when all but one have returned: still held.
    last = sorted(gone)[0]
    for still_missing in (gone, {last}):
        decision = judge(
            inventory, names - still_missing, vanished={}, now=later * 86_400 + BURST_SECONDS
        )
        assert decision.held == still_missing and not decision.remove
    assert judge(inventory, present, confirmed=True).remove == gone
    assert judge(inventory, names).held == frozenset()


@given(NAMES, NAMES)
def test_a_few_that_vanished_and_settled_are_removed(names: set[str], present: set[str]) -> None:
    gone = names - present
    if len(gone) > 2 and 2 * len(gone) > len(names):
        return
    vanished = dict.fromkeys(gone, -SETTLE_SECONDS)
    assert judge(inventory_of(names), present, vanished=vanished).remove == gone


def test_a_file_missing_for_a_moment_is_waited_for() -> None:
    inventory = inventory_of({"a", "b", "c"})
    decision = judge(inventory, {"b", "c"}, vanished={"a": 10.0}, now=10.5)
    assert decision.waiting == {"a"} and not decision.remove
    assert decision.recheck_after == SETTLE_SECONDS - 0.5


def test_files_vanishing_one_by_one_are_counted_together() -> None:
    """A slow `rm *`: the first two are gone before the third makes it a burst."""
    names = {"a", "b", "c", "d", "e"}
    times = VanishTimes()
    inventory = inventory_of(names)
    removed: list[str] = []
    for step, gone in enumerate("abcde"):
        present = {name for name in inventory if name > gone}
        now = step * 5.0
        times.update(set(inventory), present, now)
        now += SETTLE_SECONDS
        vanished = times.update(set(inventory), present, now)
        decision = judge(inventory, present, vanished=dict(vanished), now=now)
        for name in decision.remove:
            del inventory[name]
            removed.append(name)
        inventory = {n: Record(n, held=n in decision.marked) for n in inventory}
    assert removed == ["a", "b"]
    assert set(inventory) == {"c", "d", "e"}


def test_the_same_files_removed_a_minute_apart_all_go() -> None:
    inventory = inventory_of({"a", "b", "c"})
    times = VanishTimes()
    now = 0.0
    for gone in "abc":
        present = {name for name in inventory if name > gone}
        times.update(set(inventory), present, now)
        now += SETTLE_SECONDS
        vanished = times.update(set(inventory), present, now)
        decision = judge(inventory, present, vanished=dict(vanished), now=now)
        assert decision.remove == {gone}
        del inventory[gone]
        now += BURST_SECONDS


def test_at_start_up_every_missing_file_counts_as_vanished_now() -> None:
    names = {"a", "b", "c", "d"}
    vanished = VanishTimes().update(names, {"d"}, 0.0)
    assert judge(inventory_of(names), {"d"}, vanished=dict(vanished)).held == {"a", "b", "c"}


def test_a_returned_file_has_its_time_forgotten() -> None:
    times = VanishTimes()
    assert times.update({"a"}, set(), 0.0) == {"a": 0.0}
    assert times.update({"a"}, {"a"}, 1.0) == {}
    assert times.update({"a"}, set(), 5.0) == {"a": 5.0}


def test_the_first_folder_of_a_new_home_is_adopted() -> None:
    assert judge({}, {"a"}, same_folder=False).adopt_folder


def test_two_of_two_are_removed_and_three_of_three_are_not() -> None:
    old = {"a": -5.0, "b": -5.0}
    assert judge(inventory_of({"a", "b"}), set(), vanished=old).remove == {"a", "b"}
    old["c"] = -5.0
    assert not judge(inventory_of({"a", "b", "c"}), set(), vanished=old).remove


def test_exactly_half_is_not_over_half() -> None:
    names = set("abcdef")
    vanished = dict.fromkeys("abc", -5.0)
    assert judge(inventory_of(names), set("def"), vanished=vanished).remove == set("abc")
