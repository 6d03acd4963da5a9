"""Conditions keep their moment; reports survive the trip through TOML."""

from __future__ import annotations

import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from specs.conditions import Condition, ConditionType, Reason, Status, merge
from specs.drift import Drift
from specs.report import Failure, Report

READY = Condition(
    ConditionType.Ready, Status.true, Reason.GuestReady, "", 1, "2026-01-01T00:00:00Z"
)


def later(**fields: object) -> Condition:
    base = {
        "type": READY.type,
        "status": READY.status,
        "reason": READY.reason,
        "message": "again",
        "generation": 2,
        "since": "2026-01-02T00:00:00Z",
    }
    return Condition(**{**base, **fields})  # type: ignore[arg-type]


def test_moment_stays_while_status_and_reason_stay() -> None:
    merged = merge({READY.type: READY}, [later()])[READY.type]
    assert merged.since == READY.since
    assert (merged.message, merged.generation) == ("again", 2)


def test_moment_moves_with_status_or_reason() -> None:
    for new in (later(status=Status.unknown), later(reason=Reason.Starting)):
        assert merge({READY.type: READY}, [new])[READY.type] is new


def test_merge_keeps_what_was_not_judged_again_and_changes_no_argument() -> None:
    old = {READY.type: READY}
    merged = merge(old, [later(type=ConditionType.Valid)])
    assert set(merged) == {ConditionType.Ready, ConditionType.Valid}
    assert old == {READY.type: READY}


def full_report() -> Report:
    return Report(
        name="fern",
        generation=3,
        state="running",
        conditions=(READY,),
        vmm={"pid": 12, "exited": None, "kernel": {"sha256": "ab", "note": None}},
        drift=(Drift("memory", "512", "640", "2026-01-01T00:00:00Z", "set back"),),
        failure=Failure(step="start", message="no", replay="qemu -x"),
    )


def test_report_survives_toml() -> None:
    text = tomli_w.dumps(full_report().to_toml_dict())
    again = Report.from_dict(tomllib.loads(text))
    assert again.conditions == (READY,)
    assert again.drift == full_report().drift
    assert again.failure == full_report().failure
    assert again.vmm == {"pid": 12, "kernel": {"sha256": "ab"}}
    assert again.to_toml_dict() == full_report().to_toml_dict()


def test_report_of_a_newer_version_is_still_read() -> None:
    data = {**full_report().to_toml_dict(), "mood": "fine"}
    assert Report.from_dict(data).name == "fern"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(data=st.dictionaries(st.sampled_from([*Report.model_fields]), _JSON, max_size=5) | _JSON)
def test_garbage_raises_value_error_and_nothing_else(data: object) -> None:
    try:
        Report.from_dict(data)
    except ValueError:
        return


def test_missing_name_is_garbage() -> None:
    with pytest.raises(ValueError, match="name"):
        Report.from_dict({"generation": 1})
