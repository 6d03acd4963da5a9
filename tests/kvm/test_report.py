"""What the host makes of the escape suite's report that comes out of the lab. No lab is needed."""

from __future__ import annotations

from typing import Any

from tests.escape.test_threat_model import REPORT
from tests.kvm.lab import Job, Outcome, of_the_suite, summary

READINGS = {"hardware": True}


def report(*checks: tuple[str, str], **readings: Any) -> dict[str, Any]:
    found = [
        {"id": id, "result": result, "reading": f"read of {id}", "proves": "", "seconds": 1.25}
        for id, result in checks
    ]
    confinement = {**REPORT["confinement"], **READINGS, **readings}
    return {**REPORT, "accel": "auto", "checks": found, "confinement": confinement}


def outcome_of(made: dict[str, Any]) -> Outcome:
    return Outcome(results=list(of_the_suite(made)), ended=0)


def test_each_finding_is_a_result_and_a_warning_is_named() -> None:
    made = outcome_of(report(("outside.hardware", "PASS"), ("inside.token", "WARN")))
    assert made.failures() == []
    assert "warned" in summary(Job(), made)[1]
    assert "inside.token: read of inside.token" in summary(Job(), made)[1]


def test_what_failed_fails() -> None:
    (found,) = outcome_of(report(("outside.uid", "FAIL"))).failures()
    assert "outside.uid" in found and "read of outside.uid" in found


def test_on_kvm_the_wall_of_hardware_must_be_proved() -> None:
    (found,) = outcome_of(report(("outside.hardware", "WARN"))).failures()
    assert "outside.hardware" in found


def test_the_rows_of_a_group_that_was_not_run_are_not_missed() -> None:
    made = report(("outside.hardware", "PASS"))
    del made["confinement"]["mounts"]
    assert outcome_of(made).failures() == []
    made["checks"] += report(("mounts.confined", "PASS"))["checks"]
    (found,) = outcome_of(made).failures()
    assert "mounts" in found and "not shown" in found


def test_a_reading_that_the_threat_model_does_not_have_fails() -> None:
    (found,) = outcome_of(report(uid="shared")).failures()
    assert "THREAT_MODEL" in found and "'shared'" in found
