"""The yardstick of `ready`: the very QEMU command line of a sandbox, without jail and controller.

Kernel, initramfs, image and devices are the ones the sandbox had; its data disk is an empty one
made the same way, beforehand. It must do nothing that the product could be spared.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.client import AgentClient
from reconcilers import backend, disk, launchrecord
from reconcilers.facts import MIB
from reconcilers.kernel import find_kernel
from specs.config import Config
from tests.vm.harness import Home

BOOT_SECONDS = 90.0
# Above every number that QEMU is given, so that dup2 in the child overwrites none of them.
FIRST_SPARE = 100
# One of these is in the directory of a group that has the CPU controller: cgroup v1, v2.
CPU_FILES = ("cpu.shares", "cpu.weight")


@dataclass(frozen=True)
class Booted:
    """`seconds` are from QEMU's start to its agent's first word."""

    client: AgentClient
    seconds: float
    pid: int


@dataclass(frozen=True)
class Bare:
    """How to boot one more VM like a sandbox of `like`."""

    argv: tuple[str, ...]
    image: Path
    data_mib: int
    cpu_group: Path

    @classmethod
    def like(cls, home: Home, name: str) -> Bare:
        """The settings of a running sandbox, read from its launch record."""
        record = launchrecord.read(home.runtime / name / "launch.json")
        assert record is not None, f"{name} does not run"
        kernels = home.path / "kernels"
        paths = {
            backend.KERNEL_PATH: find_kernel(Config(), kernels).image,
            backend.INITRD_PATH: kernels / f"initramfs-{record.initramfs_sha256}.cpio",
        }
        (image,) = (home.path / "images").glob("*/root.squashfs")
        # Under the sandbox's name it would be taken for a stray, and killed.
        paths[f"box:{home.instance}:{name}"] = Path("bare")
        argv = tuple(str(paths.get(word, word)) for word in record.argv)
        (group,) = [g for g in home.cgroups(name) if any((g / f).exists() for f in CPU_FILES)]
        return cls(argv, image, record.data_bytes // MIB, group.parent.parent)

    async def boot(self) -> float:
        """Boot, wait for the agent's first word, kill; seconds from starting QEMU to that word."""
        async with self.booted() as vm:
            return vm.seconds

    @contextlib.asynccontextmanager
    async def booted(
        self, more: Mapping[int, int] | None = None, beside: Sequence[int] = ()
    ) -> AsyncIterator[Booted]:
        """A VM as long as the context lives.

        `more` are descriptors besides those every VM has, by QEMU's number for each. `beside` are
        processes that serve it: as a sandbox's are, they are put into its group, and ended with it.
        """
        with TemporaryDirectory(prefix="boxbench-") as scratch, ExitStack() as stack:
            folder = Path(scratch)
            disk.create(folder / "disk", self.data_mib)
            descriptors = self._descriptors(folder, stack) | dict(more or {})
            group = stack.enter_context(self._scheduled_alike())
            for each in beside:
                stack.callback(_end, each)
            begun = time.monotonic()
            pid = self._spawn(descriptors)
            try:
                for each in (pid, *beside):
                    (group / "cgroup.procs").write_text(str(each))
                reader, writer = await asyncio.open_unix_connection(folder / "agent")
                client = await AgentClient.connect(
                    reader, writer, token=os.urandom(32), first=True, timeout=BOOT_SECONDS
                )
                try:
                    yield Booted(client, time.monotonic() - begun, pid)
                finally:
                    await client.close()
            finally:
                _end(pid)

    @contextlib.contextmanager
    def _scheduled_alike(self) -> Iterator[Path]:
        """A CPU group without a limit, as deep in the tree as a sandbox's.

        The scheduler divides time between groups first: on a busy host a QEMU outside of them gets
        another share than one inside, and the two would not be comparable.
        """
        instance = self.cpu_group / f"bench{os.getpid()}"
        group = instance / "bare"
        instance.mkdir()
        try:
            if (instance / "cgroup.subtree_control").exists():  # v2
                (instance / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir()
            try:
                yield group
            finally:
                group.rmdir()
        finally:
            instance.rmdir()

    def _descriptors(self, folder: Path, stack: ExitStack) -> dict[int, int]:
        data = disk.observe(folder / "disk")
        assert data is not None

        def kept(descriptor: int) -> int:
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE)
            stack.callback(os.close, high)
            return high

        found: dict[int, int] = {}
        for number, name in (
            (backend.QMP_FD, "qmp"),
            (backend.CONSOLE_FD, "console"),
            (backend.AGENT_FD, "agent"),
        ):
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(folder / name))
                listener.listen(1)
                found[number] = kept(listener.fileno())
        files = {
            backend.ROOT_FD: (self.image, os.O_RDONLY),
            backend.DATA_FD: (data.path, os.O_RDWR),
        }
        for number, (path, flags) in files.items():
            descriptor = os.open(path, flags)
            found[number] = kept(descriptor)
            os.close(descriptor)
        return found

    def _spawn(self, descriptors: dict[int, int]) -> int:
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)
        ]
        actions += [(os.POSIX_SPAWN_DUP2, source, number) for number, source in descriptors.items()]
        return os.posix_spawn(self.argv[0], self.argv, {}, file_actions=actions)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
