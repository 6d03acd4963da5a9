"""A few QMP commands over QEMU's monitor socket, through QEMU's own client library.

One connection a command: the monitor is rarely needed, and an idle connection per VM costs more
than it saves. The VMM is an enemy: replies are bounded in time here and in size by the library's
line limit.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from qemu.qmp import QMPClient, QMPError

from reconcilers.sockets import connect
from specs.errors import ChannelError

TIMEOUT = 5.0
# The library logs a traceback for every peer that hangs up; the error we raise says it in one line.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)


async def command(path: Path, name: str, arguments: dict[str, object] | None = None) -> Any:
    """Run one QMP command and return what it returned. Raises ChannelError."""
    client = QMPClient("box")
    try:
        async with asyncio.timeout(TIMEOUT):
            await client.connect(connect(path))
            try:
                return await client.execute(name, arguments)
            finally:
                await client.disconnect()
    except TimeoutError as error:
        raise ChannelError(f"the VMM did not answer {name} within {TIMEOUT:g} s") from error
    except (QMPError, OSError, EOFError) as error:
        raise ChannelError(f"the VMM refused {name}: {error}") from error


async def pause_reason(path: Path) -> str:
    """QEMU's word for why the virtual CPUs are held; empty while they run. Raises ChannelError."""
    status = await command(path, "query-status")
    return "" if status.get("running") is True else str(status.get("status", "unknown"))


async def run_on(path: Path) -> None:
    """Let held virtual CPUs run again. Raises ChannelError."""
    await command(path, "cont")


async def resize_disk(path: Path, node: str, size: int) -> None:
    """Tell the VMM that a disk's file has `size` bytes now."""
    await command(path, "block_resize", {"node-name": node, "size": size})
