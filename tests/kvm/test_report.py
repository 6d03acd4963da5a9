"""What the host makes of the escape suite's report that comes out of the lab. No lab is needed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.escape.test_threat_model import REPORT
from tests.kvm.job import ESCAPE, MORE_GROUPS, Job
from tests.kvm.lab import Outcome, of_the_suite, summary

READINGS = {"hardware": True}
PROVES = "nobody else is it"
JOBS = [
    Job(),
    Job("user", "standard", shell=True),
    Job("user", "strict", groups=MORE_GROUPS),
    Job("root", "standard", arguments=("tests/vm/test_drift.py", "-x")),
]


def report(*checks: tuple[str, str], **readings: Any) -> dict[str, Any]:
    found = [
        {"id": id, "result": result, "reading": f"read of {id}", "proves": PROVES, "seconds": 1.25}
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
    assert "a PASS would mean: nobody else is it" in found


def test_a_test_that_failed_in_there_is_named_with_the_lines_of_its_error() -> None:
    text = "    def test_it():\n>       assert one == two\nE       assert 1 == 2\n"
    result = {"test": "tests/kvm/inside/onkvm.py::test_it", "outcome": "failed", "seconds": 1}
    made = Outcome(results=[{**result, "text": text}], ended=1)
    assert made.failures() == ["tests/kvm/inside/onkvm.py::test_it: failed\nassert 1 == 2"]
    assert summary(Job(), made)[0].endswith("onkvm.py::test_it: assert 1 == 2")


def test_on_kvm_the_wall_of_hardware_must_be_proved() -> None:
    (found,) = outcome_of(report(("outside.hardware", "WARN"))).failures()
    assert "outside.hardware" in found


def test_the_rows_of_a_group_that_was_not_run_are_not_missed() -> None:
    made = report(("outside.hardware", "PASS"))
    del made["confinement"]["mounts"]
    assert outcome_of(made).failures() == []
    made["checks"] += report(("mounts.helper", "PASS"))["checks"]
    (found,) = outcome_of(made).failures()
    assert "mounts" in found and "not shown" in found


def test_groups_run_without_the_readings_from_outside_do_not_miss_them_either() -> None:
    made = report(("mounts.helper", "PASS"), ("network.vmm", "PASS"))
    own = ("mounts", "network bridge")
    made["confinement"] = {row: made["confinement"][row] for row in own}
    assert outcome_of(made).failures() == []
    made["confinement"]["network bridge"] = "everything"
    (found,) = outcome_of(made).failures()
    assert "'everything'" in found


def test_a_reading_that_the_threat_model_does_not_have_fails() -> None:
    (found,) = outcome_of(report(uid="shared")).failures()
    assert "THREAT_MODEL" in found and "'shared'" in found


@pytest.mark.parametrize("job", JOBS, ids=lambda job: " ".join(job.words()))
def test_a_job_is_the_one_that_its_words_ask_for(job: Job) -> None:
    """A session hands its first job of the lab to another process in these words."""
    assert Job.named(job.words()) == job


def test_groups_of_the_suite_are_run_without_the_other_tests() -> None:
    assert f"LAB_ARGUMENTS='{ESCAPE}'" in Job(groups=MORE_GROUPS).settings()
    assert "LAB_ARGUMENTS=''" in Job().settings()
