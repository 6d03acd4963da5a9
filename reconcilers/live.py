"""What the controller holds in memory of one running VM: its channel and the tasks that read from
it.

All of it can be lost at any moment and is built again from the launch record; it must hold nothing
that decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from agent.client import AgentClient
from reconcilers.launchrecord import LaunchRecord

LAST_WORDS_SECONDS = 1.0


class Live:
    """Channel and background tasks of the VM that `record` describes."""

    def __init__(self, record: LaunchRecord) -> None:
        self.record = record
        self.client: AgentClient | None = None
        # Set before we end the VMM ourselves, so that its end is not taken for a death.
        self.stopping = False
        # How long it may take its guest to end its commands and unmount /data, when it is asked to.
        self.unmount_seconds = 10.0
        # The guest said, when it was shut down, that its /data is unmounted.
        self.unmounted = False
        # Why the channel that was open last is not any more, until somebody has noted it.
        self.broken = ""
        self._tasks: set[asyncio.Task[None]] = set()

    def same_vmm(self, record: LaunchRecord) -> bool:
        """Whether `record` describes the very process this object was made for."""
        ours = self.record
        return (ours.pid, ours.start_time) == (record.pid, record.start_time)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something for as long as this VM is held."""

        async def quiet() -> None:
            # A reader of a dying VMM ends with whatever error the kernel likes; the exit itself is
            # seen by pidfd.
            with contextlib.suppress(Exception):
                await work

        task = asyncio.create_task(quiet())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drop_channel(self) -> None:
        """Close the channel; the next connection makes a new one."""
        client, self.client = self.client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()

    async def close(self, *, ended: bool = False) -> None:
        """Let go of everything; the VMM itself is not touched.

        With `ended` the VMM is gone, and its last words are waited for: they say why.
        """
        await self.drop_channel()
        tasks = list(self._tasks)
        if ended and tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
