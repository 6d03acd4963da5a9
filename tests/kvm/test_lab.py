"""box on real KVM and pure cgroup v2, in a machine made for it: docs/kvm-lab.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from tests.failures import PART
from tests.kvm.conftest import BEGUN, SUMMARIES
from tests.kvm.job import MORE_GROUPS, Job
from tests.kvm.lab import LAB_SECONDS, Outcome, run, summary

# Beside the run itself: making the image, the first time, and the second disk.
pytestmark = [pytest.mark.needs_lab, pytest.mark.timeout(LAB_SECONDS + 600)]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job("root", "strict"), id="strict-as-root"),
        pytest.param(Job("root", "standard"), id="standard-as-root", marks=pytest.mark.long),
        pytest.param(Job("user", "strict"), id="strict-as-user", marks=pytest.mark.long),
        pytest.param(Job("user", "standard"), id="standard-as-user", marks=pytest.mark.long),
        pytest.param(
            Job("root", "strict", arguments=("tests/vm/test_drift.py",)),
            id="every-drift",
            marks=pytest.mark.long,
        ),
        pytest.param(
            Job("root", "strict", groups=MORE_GROUPS),
            id="more-attacks-as-root",
            marks=pytest.mark.long,
        ),
    ],
)
def test_everything_holds_on_real_kvm(
    job: Job, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    begun = BEGUN.get(request.node.nodeid)
    if begun is None:
        outcome = run(job)
    else:
        told = begun.result(LAB_SECONDS + 600, sys.stdout.write)
        outcome = Outcome(**json.loads(told))
    SUMMARIES.extend(summary(job, outcome))
    failed = outcome.failures()
    for each in failed:
        record_property(PART, each)
    if failed:
        pytest.fail("\n\n".join(failed), pytrace=False)
    assert outcome.ended == 0, f"the lab ended with {outcome.ended}:\n{outcome.console[-4000:]}"
    assert outcome.results, "no check ran"
