"""What the end of a VMM asks of the loop."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from controller.entry import Entry
from controller.lockfile import ControllerLock
from controller.loop import Controller
from controller.records import Record
from controller.wiring import build_host
from reconcilers.layout import Layout
from specs.config import Config


@pytest.fixture
def vmm() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as found:
        yield found
        found.kill()


@pytest.mark.parametrize(("attempts", "at_once"), [(0, True), (3, False)])
async def test_the_end_of_a_vmm_that_a_failed_pass_took_back_keeps_the_back_off(
    layout: Layout, vmm: subprocess.Popen[bytes], attempts: int, at_once: bool
) -> None:
    with ControllerLock.acquire(layout.lock) as lock:
        controller = Controller(layout, build_host(layout, Config()), lock)
        entry = controller.inventory.entries["web"] = Entry(Record(name="web"))
        entry.attempts = attempts  # and no `live`: the pass has let go of it
        controller._watch_exit("web", vmm.pid)
        vmm.kill()
        waiting = asyncio.create_task(controller.queue.get())
        done, _ = await asyncio.wait((waiting,), timeout=60.0 if at_once else 1.0)
        waiting.cancel()
        assert bool(done) is at_once
