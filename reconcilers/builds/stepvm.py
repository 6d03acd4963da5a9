"""Runs steps in a machine that is there for them, and watches that it gets on.

What a step prints is told line by line and never kept whole. A step may hang, fork without end or
power its machine off: each of these is a step that failed, and the machine is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from agent.client import AgentClient, ExecRequest
from agent.messages import Exit
from agent.process import Process
from reconcilers import qmp
from reconcilers.builds.queue import StepFailed
from reconcilers.images.progress import LINE_MAX, Progress
from reconcilers.letgo import let_go
from reconcilers.throwaway import Machine
from specs.errors import BoxError, ChannelError, HostError
from specs.recipe import Step
from specs.text import visible

T = TypeVar("T")
TITLE_MAX = 120
# Of the output of a step that failed, in its condition: lines, and characters of each.
LAST_LINES, LAST_LINE_MAX = 12, 200
# How often QEMU is asked whether it holds the guest, which it does while the host's disk is full.
LOOK_SECONDS = 2.0


class Steps:
    """Runs steps with one environment. `seconds` is how long each may take, `no_network` why they
    have none.
    """

    def __init__(
        self, env: Mapping[str, str], seconds: float, progress: Progress, no_network: str = ""
    ) -> None:
        self._no_network = no_network
        self._env = {key.encode(): value.encode() for key, value in env.items()}
        self._seconds = seconds
        self._progress = progress

    async def run(self, machine: Machine, step: Step) -> None:
        """One step, to its end. Raises StepFailed with its last lines, HostError when the host
        cannot go on.
        """
        last: deque[bytes] = deque(maxlen=LAST_LINES)
        how = await watched(machine, self._ended(machine.client, step, last))
        if how.kind == "exit" and how.value == 0:
            return
        said = " | ".join(visible(_text(each), LAST_LINE_MAX) for each in last if each.strip())
        lacking = f" (it had no network: {self._no_network})" if self._no_network else ""
        raise StepFailed(
            f"{visible(step.title, TITLE_MAX)}: {_words(how, self._seconds)}"
            + (f": {said}" if said else "")
            + lacking,
            fix="change the step; box build shows its whole output",
        )

    async def _ended(self, client: AgentClient, step: Step, last: deque[bytes]) -> Exit:
        request = ExecRequest(
            argv=tuple(each.encode("utf-8", "surrogateescape") for each in step.argv),
            env=self._env,
            stdin=bool(step.stdin),
        )
        process = await client.exec(request)
        feeding = asyncio.create_task(_feed(process, step.stdin))
        try:
            async with asyncio.timeout(self._seconds):
                await self._tell(process, last)
                return await process.wait()
        except TimeoutError:
            return Exit("timeout", 0)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await process.abandon()

    async def _tell(self, process: Process, last: deque[bytes]) -> None:
        """Every line, whole where it is not longer than LINE_MAX."""
        begun = {"stdout": b"", "stderr": b""}

        def line(raw: bytes) -> None:
            self._progress.line(raw)
            last.append(raw[:LINE_MAX])

        while (piece := await process.read())[0] != "end":
            *whole, rest = (begun[piece[0]] + piece[1]).split(b"\n")
            for each in whole:
                line(each)
            if len(rest) > LINE_MAX:
                line(rest)
                rest = b""
            begun[piece[0]] = rest
        for rest in begun.values():
            if rest:
                line(rest)


async def _feed(process: Process, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ChannelError):
        await process.write(data)
        await process.close_stdin()


async def watched(machine: Machine, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, unless QEMU holds the guest meanwhile, which would wait for ever."""
    working = asyncio.create_task(work)
    try:
        held = 0
        while not working.done():
            await asyncio.wait({working}, timeout=LOOK_SECONDS)
            if working.done():
                break
            reason = ""
            with contextlib.suppress(BoxError):  # a VMM that is gone is told by the channel
                reason = await qmp.pause_reason(machine.qmp)
            held = held + 1 if reason else 0
            if held == 2:  # not a moment between two writes
                raise HostError(
                    f"the machine of the build is held ({reason}): the host cannot write its disk",
                    fix="free space where the home of box is: df -h",
                )
        return working.result()
    finally:
        await let_go(working)


def _words(how: Exit, seconds: float) -> str:
    match how.kind:
        case "exit":
            return f"it ended with status {how.value}"
        case "signal":
            return f"it was ended by signal {how.value}"
        case "timeout":
            return f"it took longer than {seconds:g} s"
        case "lost":
            return f"its machine ended, or fell silent: {how.message}"
    return how.message or how.kind


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
