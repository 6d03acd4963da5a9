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
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.client import AgentClient
from agent.messages import ExecRequest
from bench import transfers
from bench.bare import FIRST_SPARE, Bare
from bench.line import RUNNING
from bench.measure import Row
from bench.transfers import Side
from reconcilers import backend, virtiofsd
from reconcilers.confinement.policy import SHARED_PATH
from reconcilers.confinement.sharepolicy import CAPABILITIES
from tests.vm.harness import Home, home_with_controller

FILE_MIB = 256
TIMES = 2  # in one measurement, for the guest's clock shows hundredths of a second
PAIRS = 11  # at least: a second is short, and whatever else runs hits one half or the other
WHERE = "/mnt"
# Into the host's page cache, not onto its disk, which is the same for both and slower than either.
COMMANDS = {
    "read": f"dd if={WHERE}/read of=/dev/null bs=1M",
    "written": f"dd if=/dev/zero of={WHERE}/written bs=1M count={FILE_MIB} conv=notrunc",
}
_TIME = re.compile(rb"real\s+(\d+)m ([0-9.]+)s")  # of busybox's `time`


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
    async def ours(script: str) -> float:
        done = await asyncio.to_thread(home.run, "shared", "sh", "-c", script)
        return _seconds(done.stderr)

    rows: list[Row] = []
    count = max(repeat, PAIRS)
    with _served(folder) as (connection, server):
        more = {backend.MOUNT_FD: connection}
        async with Bare.like(home, "shared").booted(more, [server]) as vm:
            await vm.client.mount(backend.mount_tag(0), WHERE, readonly=False)

            async def bare(script: str) -> float:
                return _seconds(await _run(vm.client, script))

            for what, command in COMMANDS.items():
                script = f"time sh -c '{'; '.join([command] * TIMES)}'"
                one = Side(partial(ours, script), transfers.members(home, "shared"))
                other = Side(partial(bare, script), (vm.pid, server))
                size = FILE_MIB * TIMES
                rows += await transfers.pairs("shared", what, size, one, other, count)
    return rows


def _seconds(said: bytes) -> float:
    took = _TIME.search(said)
    assert took is not None, said
    return int(took[1]) * 60 + float(took[2])


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
def _served(folder: Path) -> Iterator[tuple[int, int]]:
    """The connection to a virtiofsd without a jail, at a number QEMU spares, and its PID.

    It runs as root and is the caller's to end, when it has been seen to answer.
    """
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
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{scratch}/socket")
            high = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE)
        try:
            yield high, pid
        finally:
            os.close(high)
