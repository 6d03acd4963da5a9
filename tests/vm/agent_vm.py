"""A guest that several tests share, and short ways to run something in it.

It must not assert anything about the agent: what is right is said by the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from agent.client import AgentClient, ExecRequest, Exit
from tests.conftest import Evidence
from tests.vm import bare

SHOW_ARGUMENTS = '#!/bin/sh\nfor a in "$@"; do printf "%s\\0" "$a"; done\n'
EXTRA = (
    ("bin/show-arguments", SHOW_ARGUMENTS, 0o755),
    ("bin/not-executable", "#!/bin/sh\n", 0o644),
    ("bin/no-interpreter", "#!/bin/absent\n", 0o755),
    ("bin/no-header", "echo hi\n", 0o755),
)


@contextlib.contextmanager
def booted(folder: Path, evidence: Evidence, label: str) -> Iterator[bare.BareVm]:
    """A VM with root and data, whose agent has had its first connection."""
    root = bare.busybox_image(folder, EXTRA)
    data = bare.data_disk(folder / "data.img", 64)
    machine = bare.BareVm(
        folder / "vm", initrd=bare.initramfs(folder / "initrd"), root=root, data=data
    )
    evidence.watch(machine.folder, label)
    try:
        machine.start()
        asyncio.run(_first(machine))
        yield machine
    finally:
        machine.stop()
        evidence.forget(machine.folder)


async def _first(machine: bare.BareVm) -> None:
    client = await machine.connect(first=True)
    await client.close()


async def run(
    guest: AgentClient,
    *argv: str | bytes,
    env: dict[bytes, bytes] | None = None,
    cwd: str = "",
    user: str = "root",
    timeout_ms: int = 0,
    limit: int = 1 << 20,
) -> tuple[Exit, bytes, bytes]:
    words = tuple(a.encode() if isinstance(a, str) else a for a in argv)
    process = await guest.exec(
        ExecRequest(words, env or {}, cwd=cwd, user=user, timeout_ms=timeout_ms)
    )
    async with asyncio.timeout(60):
        return await process.collect(limit)


async def shell(guest: AgentClient, script: str, *, timeout_ms: int = 0) -> tuple[Exit, str]:
    how, out, err = await run(guest, "sh", "-c", script, timeout_ms=timeout_ms)
    return how, (out + err).decode()


async def alive(guest: AgentClient, mark: str) -> int:
    """Processes whose command line holds `mark`; the pattern does not match itself."""
    _, out = await shell(guest, f"ps -o args | grep -c '[{mark[0]}]{mark[1:]}'")
    return int(out)


async def gone(guest: AgentClient, mark: str, within: float = 20.0) -> bool:
    until = time.monotonic() + within
    while await alive(guest, mark):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.05)
    return True


async def works_again(guest: AgentClient, within: float = 60.0) -> bool:
    """Whether commands start, waiting for the workloads' namespace to be made anew."""
    until = time.monotonic() + within
    while (await run(guest, "echo", "ok"))[1] != b"ok\n":
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.1)
    return True


async def prompt(guest: AgentClient, within: float = 60.0) -> bool:
    """Whether a command is answered in less than a second, tried again for `within` seconds.

    A stream that blocks the others does so for as long as it lasts; a host that has no time for
    the guest does so for a while. Only the first makes every try slow.
    """
    until = time.monotonic() + within
    while True:
        began = time.monotonic()
        how, out, err = await run(guest, "echo", "ok")
        assert (how.kind, how.value, out, err) == ("exit", 0, b"ok\n", b"")
        if time.monotonic() - began < 1:
            return True
        if time.monotonic() > until:
            return False
