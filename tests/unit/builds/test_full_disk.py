"""The host's disk is full while steps write: nothing that may be lost is taken for done."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from reconcilers import qmp
from reconcilers.backend import HostFacts
from reconcilers.backends.qemu import Qemu
from reconcilers.builds import stepvm
from reconcilers.throwaway import Machine
from specs.boxfile import Boxfile
from specs.errors import HostError
from specs.names import HostNames

MARKER = HostNames("0123456789ab", "agent").marker
FACTS = HostFacts(binary=Path("/usr/bin/qemu-system-x86_64"), version=(7, 2), tsc_khz=None)


def devices(*, building: bool, archive: str) -> dict[str, bool]:
    """Whether the guest is told of each disk that it could not be written."""
    box = Boxfile(name="agent")
    said = Qemu().command(box, "kvm", MARKER, FACTS, archive=archive, building=building)
    found = [each.split(",") for each in said.argv if each.startswith("virtio-blk-device")]
    return {words[1].removeprefix("drive="): "werror=report" in words for words in found}


def test_a_guest_is_not_told_that_what_a_step_wrote_is_lost() -> None:
    """It forgets that at once, and ends in good order; held, it can be seen from outside."""
    told = {"root": False, "data": False, "transfer": True}
    assert devices(building=True, archive="written") == told
    assert devices(building=False, archive="written") == told | {"data": True}
    assert devices(building=True, archive="") == {"root": False, "data": False}


async def test_a_machine_that_is_held_ends_whatever_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stepvm, "LOOK_SECONDS", 0.01)
    answers = iter(["", "io-error", "", "io-error", "io-error"])

    async def held(_path: Path) -> str:
        return next(answers)

    monkeypatch.setattr(qmp, "pause_reason", held)
    machine = Machine(cast(Any, None), Path("qmp"))
    ended = asyncio.Event()

    async def handing_out() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with pytest.raises(HostError, match="the host cannot write its disk"):
        await stepvm.watched(machine, handing_out())
    assert ended.is_set()
