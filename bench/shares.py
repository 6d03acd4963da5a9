"""What a guest reads and writes through a mount, over QEMU and virtiofsd started by hand.

Both virtiofsd have one command line, both guests one directory, kernel and program, and the time is
the guest's own: the channel of neither is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.client import AgentClient
from agent.messages import ExecRequest
from bench import subject
from bench.bare import FIRST_SPARE, Bare
from bench.line import RUNNING
from bench.measure import Row, Target, ratios
from reconcilers import backend, virtiofsd
from reconcilers.confinement.policy import SHARED_PATH
from reconcilers.confinement.sharepolicy import CAPABILITIES
from tests.vm.harness import Home, home_with_controller

FILE_MIB = 256
TIMES = 4  # in one measurement, for the guest's clock shows hundredths of a second
WHERE = "/mnt"
# Into the host's page cache, not onto its disk, which is the same for both and slower than either.
COMMANDS = {
    "read": f"dd if={WHERE}/read of=/dev/null bs=1M",
    "written": f"dd if=/dev/zero of={WHERE}/written bs=1M count={FILE_MIB} conv=notrunc",
}
# The goal is a throughput of at least 0.9; these are times
SLOWEST = 1 / 0.9
_TIME = re.compile(rb"real\s+(\d+)m ([0-9.]+)s")  # of busybox's `time`
Run = Callable[[str], Awaitable[bytes]]


def shared(repeat: int) -> list[Row]:
    """A file of 256 MiB in blocks of 1 MiB, several times; interleaved pairs, each way."""
    with TemporaryDirectory(prefix="boxbench-") as scratch:
        folder = Path(scratch, "shared")
        folder.mkdir()
        for name in COMMANDS:
            (folder / name).write_bytes(os.urandom(1 << 20) * FILE_MIB)
        with home_with_controller(Path(scratch)) as home:
            mount = f'{{host: "{folder}", guest: {WHERE}, mode: rw}}'
            home.put("shared", f"{RUNNING}mounts: [{mount}]\n")
            home.ready("shared")
            return asyncio.run(_measured(home, folder, repeat))


async def _measured(home: Home, folder: Path, repeat: int) -> list[Row]:
    async def ours(script: str) -> bytes:
        done = await asyncio.to_thread(home.run, "shared", "sh", "-c", script)
        return done.stderr

    rows = []
    with _served(folder) as connection:
        more = {backend.MOUNT_FD: connection}
        async with Bare.like(home, "shared").booted(more) as (client, _):
            await client.mount(backend.mount_tag(0), WHERE, readonly=False)

            async def bare(script: str) -> bytes:
                return await _run(client, script)

            for what, command in COMMANDS.items():
                script = "; ".join([command] * TIMES)
                rows += await _pairs(what, f"time sh -c '{script}'", ours, bare, repeat)
    return rows


async def _pairs(what: str, command: str, ours: Run, bare: Run, repeat: int) -> list[Row]:
    found: dict[Run, list[float]] = {ours: [], bare: []}
    for turn in range(repeat + 1):
        for run in (ours, bare) if turn % 2 else (bare, ours):
            subject.wait_host_idle(1.0)
            said = await run(command)
            took = _TIME.search(said)
            assert took is not None, said
            found[run].append(int(took[1]) * 60 + float(took[2]))
    # The first of each translated the guest's code and filled the cache.
    mine, theirs = tuple(found[ours][1:]), tuple(found[bare][1:])
    rates = [tuple(FILE_MIB * TIMES / seconds for seconds in times) for times in (mine, theirs)]
    return [
        Row("shared", f"{what} through a mount", "MiB/s", rates[0]),
        Row("shared", f"{what}, QEMU and virtiofsd by hand", "MiB/s", rates[1]),
        Row("shared", f"time of {what}, one over the other", "x", ratios(mine, theirs),
            Target(SLOWEST)),
    ]  # fmt: skip


async def _run(client: AgentClient, script: str) -> bytes:
    """What a command says on standard error."""
    argv = tuple(word.encode() for word in ("sh", "-c", script))
    process = await client.exec(ExecRequest(argv, {b"PATH": b"/bin:/sbin:/usr/bin"}))
    said = b""
    while True:
        channel, piece = await process.read()
        if channel == "end":
            break
        said += piece if channel == "stderr" else b""
    how = await process.wait()
    assert (how.kind, how.value) == ("exit", 0), (how, said)
    return said


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[int]:
    """A virtiofsd without a jail, as root, and the connection to it at a number QEMU spares."""
    found = virtiofsd.find()
    assert found is not None, virtiofsd.FIX
    argv = [word.replace(SHARED_PATH, str(folder)) for word in found.command(CAPABILITIES)]
    with TemporaryDirectory(prefix="boxbench-") as scratch, socket.socket(socket.AF_UNIX) as heard:
        heard.bind(f"{scratch}/socket")
        heard.listen(1)
        high = fcntl.fcntl(heard.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE)
        actions = [(os.POSIX_SPAWN_DUP2, high, virtiofsd.SOCKET_FD)]
        pid = os.posix_spawn(argv[0], argv, {}, file_actions=actions)
        os.close(high)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(f"{scratch}/socket")
                high = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE)
                try:
                    yield high
                finally:
                    os.close(high)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
            os.waitpid(pid, 0)
