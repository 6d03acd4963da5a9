"""apply --wait and delete --wait: success only when it is so, failure as soon as it cannot be."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from controller.cli.waiting import SETTLE_SECONDS
from controller.socketfile import bind
from controller.store import Record, Store
from reconcilers.layout import Layout
from specs.boxfile import Boxfile, State
from specs.report import Failure
from tests.unit.cli.hostservice import serving
from tests.unit.cli.settled import condition, settle
from tests.unit.cli.support import box, text

FERN = b"name: fern\ncpus: 1\n"


def apply_and_wait(layout: Layout, data: bytes, timeout: str = "600ms") -> tuple[int, str, float]:
    """As if a controller were running, which has done what it will do."""
    listener = bind(layout.socket)
    begun = time.monotonic()
    try:
        done = box(layout.home, "apply", "-f", "-", "--wait", "--timeout", timeout, stdin=data)
    finally:
        listener.close()
    return done.returncode, text(done), time.monotonic() - begun


def test_apply_waits_until_it_is_as_declared(layout: Layout) -> None:
    settle(layout)
    status, shown, _ = apply_and_wait(layout, FERN)
    assert (status, "fern is as declared" in shown) == (0, True)


def test_apply_does_not_take_the_old_state_for_the_new(layout: Layout) -> None:
    settle(layout)
    status, shown, _ = apply_and_wait(layout, b"name: fern\ncpus: 2\n")
    assert (status, "not taken the Boxfile up" in shown) == (1, True)


def test_a_stopped_sandbox_is_as_declared_when_it_is_stopped(layout: Layout) -> None:
    settle(layout, conditions=(condition("Ready", "False", "Stopped"),))
    stopped = Boxfile(name="fern", state=State.stopped)
    Store(layout).save(Record(name="fern", generation=2, spec=stopped))
    assert apply_and_wait(layout, b"name: fern\nstate: stopped\n")[0] == 0


def test_apply_stops_waiting_for_what_is_refused(layout: Layout) -> None:
    message = "strict needs hardware; write `accel: tcg`"
    refused = condition("HardwareIsolated", "False", "EmulationRefused", message)
    settle(layout, conditions=(refused, condition("Ready", "False", "EmulationRefused")))
    status, shown, seconds = apply_and_wait(layout, FERN, timeout="60s")
    assert (status, "accel: tcg" in shown) == (1, True)
    assert seconds < 50
    settle(layout, conditions=(condition("Valid", "False", "RefusedByPolicy", "max_cpus: 1"),))
    status, shown, seconds = apply_and_wait(layout, b"name: fern\ncpus: 2\n", timeout="60s")
    assert (status, "max_cpus" in shown) == (1, True)
    assert f"{layout.home}/policy.toml" in shown
    assert seconds < 50


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("DataReady", "DiskShrinkRefused"),
        ("DataReady", "DiskLost"),
        ("Confined", "LayerFailed"),
        ("Valid", "Conflict"),
    ],
)
def test_what_is_not_as_declared_is_not_called_so(layout: Layout, kind: str, reason: str) -> None:
    ready = condition("Ready", "True", "GuestReady")
    settle(layout, conditions=(condition(kind, "False", reason, "because of it"), ready))
    status, shown, seconds = apply_and_wait(layout, FERN, timeout="60s")
    assert (status, f"fern: {reason}: because of it" in shown) == (1, True)
    assert "as declared" not in shown
    assert seconds < 50


def test_the_vm_of_a_former_image_is_not_the_one_that_was_declared(layout: Layout) -> None:
    failed = condition("ImageReady", "False", "BuildFailed", "there is no such image")
    settle(layout, conditions=(failed, condition("Ready", "True", "GuestReady")))
    status, shown, _ = apply_and_wait(layout, FERN, timeout="1s")
    assert (status, "BuildFailed: there is no such image" in shown) == (1, True)
    built = threading.Timer(1.0, settle, [layout])
    built.start()
    assert apply_and_wait(layout, FERN, timeout="20s")[0] == 0, "it is tried again meanwhile"
    built.join()


def test_a_refusal_is_said_once_and_every_mistake_on_a_line_of_its_own(layout: Layout) -> None:
    message = "isolation: strict needs hardware virtualization; write `accel: tcg` to accept it"
    refused = condition("HardwareIsolated", "False", "EmulationRefused", message)
    settle(layout, conditions=(refused, condition("Ready", "False", "EmulationRefused")))
    assert apply_and_wait(layout, FERN, timeout="60s")[1].count("accel: tcg") == 1
    settle(layout, conditions=(condition("Valid", "False", "InvalidBoxfile", "one\ntwo"),))
    _, shown, _ = apply_and_wait(layout, FERN, timeout="60s")
    assert "fern: InvalidBoxfile:\n  one\n  two\n" in shown


def test_a_refusal_that_is_lifted_while_waiting_is_no_failure(layout: Layout) -> None:
    settle(layout, conditions=(condition("Valid", "False", "InvalidBoxfile", "the old text"),))
    mended = threading.Timer(1.0, settle, [layout])
    mended.start()
    status, shown, _ = apply_and_wait(layout, FERN, timeout="20s")
    mended.join()
    assert (status, "fern is as declared" in shown) == (0, True)


MISSING = condition("Confined", "False", "LayerMissing", "rules: want as wanted, got others")
STARTING = condition("Ready", "False", "Starting")


def test_a_layer_that_is_mended_slowly_is_waited_for(layout: Layout) -> None:
    settle(layout, conditions=(MISSING, STARTING))
    mended = threading.Timer(2 * SETTLE_SECONDS, settle, [layout])
    mended.start()
    status, shown, _ = apply_and_wait(layout, FERN, timeout="20s")
    mended.join()
    assert (status, "fern is as declared" in shown) == (0, True)


def test_a_layer_whose_mending_fails_is_not(layout: Layout) -> None:
    failed = Failure(step="put back its network rules", message="nft refuses the table")
    settle(layout, conditions=(MISSING, STARTING), failure=failed)
    status, shown, seconds = apply_and_wait(layout, FERN, timeout="60s")
    assert (status, "fern: LayerMissing: rules" in shown) == (1, True)
    assert seconds < 50


@pytest.mark.parametrize("verb", ["wait", "apply"])
def test_what_is_waited_for_in_vain_is_named_with_its_fix(layout: Layout, verb: str) -> None:
    failed = Failure(step="start a confined VMM", message="no nft", fix="apt-get install nftables")
    settle(
        layout, conditions=(condition("Ready", "False", "BackingOff", "no nft"),), failure=failed
    )
    if verb == "apply":
        status, shown, _ = apply_and_wait(layout, FERN)
    else:
        listener = bind(layout.socket)
        try:
            done = box(layout.home, "wait", "fern", "--for", "Ready", "--timeout", "300ms")
        finally:
            listener.close()
        status, shown = done.returncode, text(done)
    assert (status, "BackingOff" in shown) == (1, True)
    assert "fix: apt-get install nftables" in shown


@pytest.mark.parametrize("before", [True, False])
def test_without_a_controller_nothing_is_as_declared(layout: Layout, before: bool) -> None:
    if before:
        settle(layout)
    done = box(layout.home, "apply", "-f", "-", "--wait", "--timeout", "60s", stdin=FERN)
    assert (done.returncode, "the controller is not running" in text(done)) == (1, True)
    assert "as declared" not in text(done)
    box(layout.home, "delete", "fern")
    Store(layout).remove("fern")
    assert box(layout.home, "wait", "fern", "--for", "deleted").returncode == 0


async def test_delete_waits_until_nothing_is_left_and_tells_when_it_is_held(
    layout: Layout,
) -> None:
    settle(layout, "agent")
    (layout.boxes / "agent.box.yaml").unlink()
    record = Store(layout).load("agent")
    assert isinstance(record, Record)
    Store(layout).save(replace(record, held=True))
    waiting = ("delete", "agent", "--wait", "--timeout", "600ms")
    async with serving(layout.socket):
        done = await asyncio.to_thread(lambda: box(layout.home, *waiting))
    assert (done.returncode, "box prune" in text(done)) == (1, True)
