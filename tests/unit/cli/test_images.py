"""`box build` and `box images` on the command line, on a terminal and off it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

from controller.cli.progress import bar, size
from controller.store import Record, Store
from reconcilers.images.progress import Progress
from reconcilers.images.store import Images
from reconcilers.layout import Layout
from specs.boxfile import Boxfile
from tests.unit.cli.hostservice import serving
from tests.unit.cli.settled import condition, settle
from tests.unit.cli.support import ARGV, ROOT, box, environment, text

DIGEST = "0123456789ab" + "c" * 52


async def test_what_a_build_prints_is_shown_escaped_and_once(layout: Layout) -> None:
    settle(layout, "agent")
    async with serving(layout.socket) as service:
        progress = service.images.found = Progress()
        progress.stage("fetching x")
        progress.line(b"\x1b[31mred\xff")
        asked = asyncio.ensure_future(asyncio.to_thread(box, layout.home, "build", "agent"))
        async with asyncio.timeout(60):
            while not service.images.shown:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        progress.stage("step 1 of 2")
        progress.line(b"two")
        progress.succeeded(DIGEST)
        done = await asked
        assert service.images.asked == [("build", "agent", False)]
    assert done.returncode == 0
    ready = b"agent: its image is ready: 0123456789ab\n"
    assert done.stdout == b"\\x1b[31mred\xef\xbf\xbd\ntwo\n" + ready
    assert done.stderr == b"agent: fetching x\nagent: step 1 of 2\n"


async def test_a_failed_build_ends_with_its_reason(layout: Layout) -> None:
    settle(layout, "agent")
    async with serving(layout.socket) as service:
        progress = service.images.found = Progress()
        progress.line(b"E: no such package")
        progress.failed("step 2 failed with status 100", "look at its lines above")
        done = await asyncio.to_thread(box, layout.home, "build", "agent", "--pull")
        assert service.images.asked == [("build", "agent", True)]
        gone = await asyncio.to_thread(box, layout.home, "build", "moss")
    assert done.returncode == 1
    assert text(done).splitlines() == [
        "E: no such package",
        "box: agent: step 2 failed with status 100",
        "  fix: look at its lines above",
    ]
    assert gone.returncode == 1 and "there is no sandbox moss" in text(gone)


async def test_whoever_stops_watching_is_told_that_it_goes_on(layout: Layout) -> None:
    settle(layout, "agent")
    async with serving(layout.socket) as service:
        service.images.found = Progress()
        service.images.found.line(b"one")
        child = await asyncio.create_subprocess_exec(
            *ARGV, "build", "agent", env=environment(layout.home), cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None and child.stderr is not None
        async with asyncio.timeout(60):
            assert await child.stdout.readline() == b"one\n"
            child.send_signal(signal.SIGINT)
            assert await child.wait() == 130
        said = (await child.stderr.read()).decode()
        assert said.startswith("box: no longer watched; the controller goes on.")
        assert service.images.found.seen().state == "running"


class OnTerminal:
    """A command with a terminal for both outputs, and what it has shown."""

    def __init__(self, layout: Layout, *arguments: str) -> None:
        self._layout, self._arguments = layout, arguments
        self._ours, self._theirs = pty.openpty()
        self.shown = ""

    async def until(self, text: str) -> None:
        limit = time.monotonic() + 60
        while text not in self.shown and time.monotonic() < limit:
            self.shown += (await asyncio.to_thread(os.read, self._ours, 4096)).decode()
        assert text in self.shown

    async def start(self) -> None:
        self._child = await asyncio.create_subprocess_exec(
            *ARGV, *self._arguments, env=environment(self._layout.home), cwd=ROOT,
            stdout=self._theirs, stderr=self._theirs,
        )  # fmt: skip
        os.close(self._theirs)

    async def end(self) -> int:
        with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
            while part := await asyncio.to_thread(os.read, self._ours, 4096):
                self.shown += part.decode()
        os.close(self._ours)
        return await self._child.wait()


async def test_a_terminal_gets_a_bar_that_leaves_no_trace(layout: Layout) -> None:
    settle(layout, "agent")
    async with serving(layout.socket) as service:
        progress = service.images.found = Progress()
        progress.stage("fetching x")
        progress.bytes(1 << 20, 4 << 20)
        terminal = OnTerminal(layout, "build", "agent")
        await terminal.start()
        await terminal.until("fetching x  [######------------------]  25%  1.0 MiB/4.0 MiB")
        progress.line(b"a line")
        progress.succeeded(DIGEST)
        assert await terminal.end() == 0
    ready = "\r\x1b[Ka line\r\nagent: its image is ready: 0123456789ab\r\n"
    assert terminal.shown.endswith(ready)


async def test_whoever_waits_on_a_terminal_sees_it_as_well(layout: Layout) -> None:
    settle(layout, "agent", conditions=(condition("Ready", "False", "Starting"),))
    async with serving(layout.socket) as service:
        progress = service.images.found = Progress()
        progress.stage("fetching x")
        terminal = OnTerminal(layout, "wait", "agent", "--for", "Ready", "--timeout", "60s")
        await terminal.start()
        await terminal.until("fetching x")
        progress.line(b"a line")
        await terminal.until("a line")
        progress.succeeded(DIGEST)
        settle(layout, "agent")
        assert await terminal.end() == 0
    assert terminal.shown.endswith("\r\x1b[Kagent: Ready\r\n")


async def test_a_build_means_the_boxfile_that_was_written_last(layout: Layout) -> None:
    settle(layout, "agent")
    (layout.boxes / "agent.box.yaml").write_text("cpus: 2\n")
    assert "the controller is not running" in text(box(layout.home, "build", "agent"))
    async with serving(layout.socket) as service:
        asked = asyncio.ensure_future(asyncio.to_thread(box, layout.home, "build", "agent"))
        await asyncio.sleep(1)
        assert service.images.asked == []
        spec = Boxfile(name="agent", cpus=2)
        Store(layout).save(Record(name="agent", generation=3, spec=spec, source="agent.box.yaml"))
        service.images.found = Progress()
        service.images.found.succeeded(DIGEST)
        assert (await asked).returncode == 0
        assert service.images.asked == [("build", "agent", False)]


def test_a_bar_says_what_is_known() -> None:
    assert bar("looking", 0, 0, 0) == "looking"
    assert bar("fetching", 3 << 20, 0, 0) == "fetching  3.0 MiB"
    half = bar("fetching", 50, 100, 10)
    assert half == "fetching  [############------------]  50%  50 B/100 B  10 B/s  5s left"
    assert bar("fetching", 200, 100, 10).startswith(f"fetching  [{'#' * 24}] 100%")
    assert [size(n) for n in (0, 1023, 1024, 150 << 20, 1 << 50)] == [
        "0 B", "1023 B", "1.0 KiB", "150 MiB", "1024 TiB",
    ]  # fmt: skip


def test_images_are_listed_without_a_controller(layout: Layout, tmp_path: Path) -> None:
    assert text(box(layout.home, "images")).startswith("no image is here yet")
    root = tmp_path / "root"
    root.mkdir()
    (layout.boxes / "fern.box.yaml").write_text(f"base: rootfs:{root}\n")
    built = Images(layout.images).build(f"rootfs:{root}")
    head, row = text(box(layout.home, "images")).splitlines()
    assert head.split() == ["NAME", "KIND", "DIGEST", "SIZE", "USED", "BY"]
    assert row.split()[:3] == [f"rootfs:{root}", "image", built.digest[:12]]
    [found] = json.loads(box(layout.home, "images", "-o", "json").stdout)["images"]
    assert found["digest"] == built.digest and found["bytes"] >= 4096


async def test_the_controller_prunes(layout: Layout) -> None:
    async with serving(layout.socket) as service:
        said = [
            text(await asyncio.to_thread(box, layout.home, "images", *more))
            for more in (["--prune", "--dry-run"], ["--prune"], ["--dry-run"])
        ]
        assert service.images.asked == [("prune", True), ("prune", False)]
    assert said[0].endswith("would be removed: 1 image, 1.0 KiB\n")
    assert said[1].endswith("removed 1 image: 1.0 KiB\n")
    assert "--dry-run goes with --prune" in said[2]
