"""Steps describe themselves and know their inverse."""

from __future__ import annotations

import inspect

from reconcilers import steps
from reconcilers.steps import Step


def every_step() -> list[type[Step]]:
    return [
        kind
        for _, kind in inspect.getmembers(steps, inspect.isclass)
        if issubclass(kind, Step) and kind is not Step
    ]


def test_every_step_describes_itself() -> None:
    assert len(every_step()) >= 12
    for kind in every_step():
        assert kind("field", "desired", "observed").describe()


def test_what_is_undone_removes_what_was_made() -> None:
    undone = {k.__name__: k("network", "d", "o").undo() for k in every_step()}
    pairs = {name: type(step).__name__ for name, step in undone.items() if step is not None}
    assert pairs == {
        "ClaimIdentity": "ReleaseIdentity",
        "CreateCgroup": "RemoveCgroup",
        "CreateDisk": "EraseDisk",
        "ForkDisk": "EraseDisk",
        "LaunchVmm": "StopVmm",
        "RaiseNetwork": "RemoveNetwork",
    }


def test_a_network_that_was_mended_stays_when_a_later_step_fails() -> None:
    assert steps.RaiseNetwork("network.rules", "as wanted", "flushed").undo() is None
