"""A command in a VM that is up: proved again, with what the Boxfile adds to every command."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agent.messages import ExecRequest
from agent.process import Process
from reconcilers import guest
from reconcilers.live import Live
from specs.boxfile import Boxfile
from specs.errors import NotUp

# What a guest has, beyond its time limit, to end a command and say so.
OVERDUE_SECONDS = 5.0


async def start(live: Live, box: Boxfile | None, request: ExecRequest) -> Process:
    """Start a command; the image's and the Boxfile's env and timeout fill in what is left out.

    Raises NotUp without a channel, KernelMismatch for another VMM or kernel than was started, and
    ChannelError when the guest does not answer.
    """
    if live.client is None:
        raise NotUp("its guest is not connected", fix="try again in a moment")
    # A frozen or replaced VMM, or another kernel behind the same channel, runs nothing.
    guest.require_proof(live.record, live.client.hello)
    if box is not None:
        variables = dict(each.split("=", 1) for each in live.record.image_env) | box.env
        ours = {k.encode(): v.encode() for k, v in variables.items()}
        timeout = request.timeout_ms or box.timeout_seconds * 1000
        request = replace(request, env={**ours, **request.env}, timeout_ms=timeout)
    process = await live.client.exec(request)
    if request.timeout_ms:
        process.seconds = request.timeout_ms / 1000
        live.keep(_end_overdue(process, process.seconds + OVERDUE_SECONDS))
    return process


async def _end_overdue(process: Process, seconds: float) -> None:
    """The guest keeps the time limit; a guest that does not must not keep a client waiting."""
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        await process.overdue()
