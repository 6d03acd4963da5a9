"""A launch whose caller is cancelled: what it started is ended, however often that happens."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from reconcilers.confinement import start
from specs.errors import ConfinementError
from specs.names import HostNames
from tests.unit.givenup import Slow

REQUEST: Any = start.LaunchRequest(HostNames("0123456789ab", "elm"), None, (), {}, -1)  # type: ignore[arg-type]


@pytest.mark.parametrize("cancelled", [1, 2])
async def test_what_was_started_for_nobody_is_ended(
    monkeypatch: pytest.MonkeyPatch, cancelled: int
) -> None:
    slow, ended, loop = Slow(), list[tuple[int, bool]](), threading.get_ident()

    def launched(*_: Any, **__: Any) -> start.Launched:
        slow.stand_still()
        return start.Launched(os.getpid(), 77, 0, (0, 0), (), 0.0)

    monkeypatch.setattr(start, "launch_blocking", launched)
    # It may take seconds to die, in which the event loop must not stand still.
    elsewhere = lambda pidfd: ended.append((pidfd, threading.get_ident() != loop))  # noqa: E731
    monkeypatch.setattr(start, "end", elsewhere)
    await slow.given_up(start.launch(REQUEST, root_files=()), cancelled)
    assert ended == [(77, True)]


@pytest.mark.parametrize("problem", [OSError("none left"), ConfinementError("no", layer="root")])
async def test_what_could_not_be_started_is_a_cancellation_all_the_same(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    slow = Slow()

    def fails(*_: Any, **__: Any) -> start.Launched:
        slow.stand_still()
        raise problem

    monkeypatch.setattr(start, "launch_blocking", fails)
    await slow.given_up(start.launch(REQUEST, root_files=()))
