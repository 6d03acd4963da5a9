"""Work that fails at the very moment when nobody wants it any more: no traceback in the log."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent.messages import Hello
from controller.httpconn import Gone, HttpConnection, Limits
from controller.operations import _answering
from reconcilers.builds import engine
from reconcilers.layout import Layout
from reconcilers.letgo import let_go
from reconcilers.live import Live
from specs.errors import HostError
from tests.unit.controller.test_image_verbs import Made
from tests.unit.reconcilers.test_files import RECORD


@contextmanager
def nothing_logged() -> Iterator[None]:
    """asyncio's default handler would log each of these with its traceback."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    yield
    gc.collect()
    assert said == []


async def fails() -> None:
    raise HostError("it failed")


async def test_how_work_that_is_let_go_ended_is_asked_for() -> None:
    with nothing_logged():
        for turns in range(3):  # not begun, or failed
            work = asyncio.ensure_future(fails())
            for _ in range(turns):
                await asyncio.sleep(0)
            await let_go(work)
            assert work.done()
            del work


@pytest.mark.skipif(not shutil.which("sqfstar"), reason="squashfs-tools is missing")
async def test_a_build_that_fails_as_its_sandbox_goes(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(layout, tmp_path)
    made.sandbox("web")

    async def build(*_: object, **__: object) -> None:
        made.inventory.entries["web"].removing = True
        raise HostError("its folder is gone")

    monkeypatch.setattr(engine, "build", build)
    with nothing_logged():
        await made.verbs.build("web", pull=False)
        await asyncio.wait({made.verbs._building["web"]})


async def test_an_answer_that_fails_as_the_controller_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, nothing_logged():
        reader, writer = await asyncio.open_connection(sock=ours)
        connection = HttpConnection(reader, writer, Limits())
        ended = asyncio.Event()

        async def work() -> None:
            await ended.wait()
            await fails()

        answering = asyncio.create_task(connection.while_there(work()))
        await asyncio.sleep(0.01)
        ended.set()
        await asyncio.sleep(0)  # it fails now, and whoever waits for it has yet to hear of it
        answering.cancel()
        with suppress(asyncio.CancelledError, HostError, Gone):
            await answering
        await connection.close()
        del answering


class LastAnswer:
    """A channel that a pass drops while its guest answers."""

    hello = Hello.__new__(Hello)

    def __init__(self, live: Live) -> None:
        self._live = live

    async def ping(self, _: float) -> None:
        self._live.client = None


async def test_a_channel_that_is_dropped_while_its_guest_is_asked() -> None:
    live = Live(RECORD)
    live.client = LastAnswer(live)  # type: ignore[assignment]
    assert await _answering(live) is LastAnswer.hello
