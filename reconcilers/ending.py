"""The end of a VM: its guest is asked to unmount /data first, if that is wanted and it answers."""

from __future__ import annotations

import contextlib

from reconcilers import guest, microvm
from reconcilers.launchrecord import LaunchRecord
from reconcilers.layout import Layout
from reconcilers.live import Live
from specs.errors import BoxError

POWER_OFF_SECONDS = 5.0
"""How long a VMM may live on after its guest has said that /data is unmounted."""


async def end(
    layout: Layout, name: str, record: LaunchRecord | None, live: Live | None, *, graceful: bool
) -> None:
    """End the VMM of `record`, and say in `live` whether the guest had unmounted /data by then.

    Raises HostError when the process does not die.
    """
    asked = False
    if live is not None:
        live.stopping = True
        if graceful:
            asked = await _ask(layout, name, live)
    if record is not None and record.pid:
        if asked:
            await microvm.wait_dead(record.pid, record.start_time, POWER_OFF_SECONDS)
        await microvm.kill(record.pid, record.start_time)


async def _ask(layout: Layout, name: str, live: Live) -> bool:
    """Whether there was somebody to ask: a VM found after a restart has no channel yet, and a guest
    that never said hello has written nothing.
    """
    with contextlib.suppress(BoxError, OSError, TimeoutError):
        if live.client is None and live.record.claimed:
            live.client, live.record = await guest.open_channel(layout, name, live.record)
        if live.client is not None:
            await live.client.shutdown(live.unmount_seconds)
            live.unmounted = True
    return live.client is not None
