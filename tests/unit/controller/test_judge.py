"""What conditions say of what was observed."""

from __future__ import annotations

from dataclasses import replace

from controller.entry import Entry
from controller.judge import judge
from controller.records import Record
from reconcilers.facts import Observed
from specs.boxfile import Boxfile, State
from specs.conditions import ConditionType, Reason, Status
from tests.unit.reconcilers.test_plan import CONVERGED


def ready(entry: Entry, observed: Observed) -> tuple[Status, Reason]:
    found = {each.type: each for each in judge(entry, observed, None, "now")}
    return found[ConditionType.Ready].status, found[ConditionType.Ready].reason


def test_a_sandbox_counts_as_stopped_only_once_its_vm_has_ended() -> None:
    entry = Entry(Record("fern", spec=Boxfile(name="fern", state=State.stopped)))
    assert ready(entry, CONVERGED) == (Status.false, Reason.Stopping)
    assert ready(entry, replace(CONVERGED, vmm=None, guest=None)) == (Status.false, Reason.Stopped)


def test_a_sandbox_that_is_being_deleted_is_not_called_stopped() -> None:
    entry = Entry(Record("fern", spec=Boxfile(name="fern")), removing=True)
    gone = replace(CONVERGED, vmm=None, guest=None)
    assert ready(entry, gone) == (Status.false, Reason.Deleting)
