"""A few QMP commands over QEMU's monitor socket, through QEMU's own client library.

One connection a command: the monitor is rarely needed, and an idle connection per VM costs more
than it saves. The VMM is an enemy: replies are bounded in time here and in size by the library's
line limit, and whatever it answers is a value or a ChannelError, never another exception.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from qemu.qmp import QMPClient, QMPError

from reconcilers.sockets import connect
from specs.errors import ChannelError
from specs.text import visible

TIMEOUT = 5.0
TEXT_MAX = 300
STATUS_MAX = 40
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
        reason = visible(str(error), TEXT_MAX)
        raise ChannelError(f"the VMM refused {name}: {reason}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # What the library does not expect of a peer: a line without end, JSON nested too deeply.
        raise ChannelError(
            f"the VMM answered {name} with nonsense: {type(error).__name__}"
        ) from error


async def pause_reason(path: Path) -> str:
    """QEMU's word for why the virtual CPUs are held; empty while they run. Raises ChannelError."""
    found = await command(path, "query-status")
    if not isinstance(found, dict):
        raise ChannelError("the VMM answered query-status with nonsense")
    if found.get("running") is True:
        return ""
    return visible(str(found.get("status", "unknown")), STATUS_MAX) or "unknown"


async def run_on(path: Path) -> None:
    """Let held virtual CPUs run again. Raises ChannelError."""
    await command(path, "cont")


async def resize_disk(path: Path, node: str, size: int) -> None:
    """Tell the VMM that a disk's file has `size` bytes now."""
    await command(path, "block_resize", {"node-name": node, "size": size})
