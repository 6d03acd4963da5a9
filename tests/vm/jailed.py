"""VMMs and probes started in the jail directly, without a controller above it.

A `Jail` owns a sandbox name of its own instance, its cgroup and everything started under it, and
removes them. What a test asserts it reads from the host.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import prctl

from agent import cpio
from reconcilers.confinement.cgroup import Cgroup
from reconcilers.confinement.policy import (
    MIB,
    Confinement,
    Program,
    Shared,
    limits_for,
    rlimits_for,
)
from reconcilers.confinement.rootview import RootFile, root_files
from reconcilers.confinement.seccomp import load_profile
from reconcilers.confinement.sharepolicy import share_confinement
from reconcilers.confinement.start import Launched, LaunchRequest, launch_blocking
from specs.names import HostNames
from tests.conftest import GUEST_KERNEL

QEMU = "/usr/bin/qemu-system-x86_64"
# Outside the default range, so that no sandbox of a controller on this host is disturbed.
UID = 1_879_300_000
SANDBOX_OPTIONS = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
MODULES = ("virtio_ring", "virtio", "virtio_mmio", "virtio_blk")  # each after what it needs
BARE = ("-nodefaults", "-no-user-config", "-display", "none", "-M", "none", "-S")


def confinement(program: Program | None = None, *, disk_bytes: int = 64 * MIB) -> Confinement:
    return Confinement(
        uid=UID,
        gid=UID,
        isolation="strict",
        limits=limits_for(cpus=2, ram_mib=256, kvm=False),
        rlimits=rlimits_for(disk_bytes=disk_bytes),
        seccomp=program or load_profile("qemu", False),
    )


def serving(share: Path, *, writable: bool = False, program: Program | None = None) -> Confinement:
    """The jail of a helper that serves this directory."""
    found = share.stat()
    shared = Shared(found.st_dev, found.st_ino, writable, (found.st_uid, found.st_gid))
    return share_confinement(confinement(), program or load_profile("qemu", False), shared)


class Jail:
    """One sandbox name and what is started under it."""

    def __init__(self, want: Confinement | None = None) -> None:
        self.names = HostNames(secrets.token_hex(6), "jailed")
        self.want = want or confinement()
        self.group = Cgroup(self.names)
        self.folder = Path(tempfile.mkdtemp(prefix="boxtest-"))
        self.launched: Launched | None = None
        self._errors, self._errors_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._sockets: dict[int, socket.socket] = {}
        prctl.set_child_subreaper(1)
        self.group.create(self.want.limits)

    def start(
        self,
        *argv: str,
        descriptors: Mapping[int, int] | None = None,
        binds: Mapping[str, int] | None = None,
        files: tuple[RootFile, ...] | None = None,
        netns: int | None = None,
        share: Path | None = None,
    ) -> Launched:
        with contextlib.ExitStack() as opened:
            shared = None
            if share is not None:
                shared = os.open(share, os.O_PATH | os.O_DIRECTORY)
                opened.callback(os.close, shared)
            request = LaunchRequest(
                names=self.names,
                confinement=self.want,
                argv=argv,
                descriptors={
                    **{n: s.fileno() for n, s in self._sockets.items()},
                    **(descriptors or {}),
                },
                binds=binds or {},
                stderr_fd=self._errors_end,
                netns_fd=netns,
                share_fd=shared,
            )
            wanted = root_files(argv[0], kvm=self.want.kvm) if files is None else files
            self.launched = launch_blocking(request, root_files=wanted)
        return self.launched

    def start_bare(self, *more: str, **others: Any) -> Launched:
        """QEMU without a machine: everything of the jail, nothing of a guest, 40 ms."""
        self.listen(3)
        return self.start(
            QEMU, *BARE, "-name", self.names.marker, "-sandbox", SANDBOX_OPTIONS,
            "-chardev", "socket,id=qmp,fd=3,server=on,wait=off",
            "-mon", "chardev=qmp,mode=control", *more, **others,
        )  # fmt: skip

    def listen(self, number: int) -> None:
        """A listening socket that the VMM gets as descriptor `number`."""
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self.folder / f"{number}.sock"))
        listening.listen()
        self._sockets[number] = listening

    def connect(self, number: int) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(20)
        connected.connect(str(self.folder / f"{number}.sock"))
        return connected

    def close_sockets(self) -> None:
        """Only the VMM listens from now on: a connection to a dead one fails at once."""
        for each in self._sockets.values():
            each.close()

    @staticmethod
    def group_of(instance: str) -> Cgroup:
        """The group of a Jail that another process made."""
        return Cgroup(HostNames(instance, "jailed"))

    @property
    def pid(self) -> int:
        assert self.launched is not None
        return self.launched.pid

    def status(self) -> dict[str, str]:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def ended(self, seconds: float = 60) -> tuple[int, int]:
        """(si_code, si_status) of its end, as waitid(2) reports it."""
        assert self.launched is not None
        ready, _, _ = select.select([self.launched.pidfd], [], [], seconds)
        assert ready, f"still running after {seconds} s: {self.errors()}"
        result = os.waitid(os.P_PIDFD, self.launched.pidfd, os.WEXITED)
        assert result is not None
        return result.si_code, result.si_status

    def errors(self) -> str:
        with contextlib.suppress(BlockingIOError):
            return os.read(self._errors, 65536).decode(errors="replace")
        return ""

    def close(self) -> None:
        self.group.kill()
        self.group.remove()
        self.close_sockets()
        if self.launched is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self.launched.pidfd, os.WEXITED)
            os.close(self.launched.pidfd)
        os.close(self._errors)
        os.close(self._errors_end)
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()
        # Else this process would adopt what later tests leave behind, and never ask for its status:
        # a zombie keeps its identity taken.
        prctl.set_child_subreaper(0)


@contextlib.contextmanager
def jail(want: Confinement | None = None, **changes: Any) -> Iterator[Jail]:
    """A Jail that is cleaned up; `changes` are fields of its Confinement."""
    made = Jail(replace(want or confinement(), **changes))
    try:
        yield made
    finally:
        made.close()


class Qmp:
    """The few QMP commands the tests need, over one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._file = connected.makefile("rwb")
        self.greeting = json.loads(self._file.readline())
        self("qmp_capabilities")

    def __call__(self, command: str, **arguments: Any) -> Any:
        line = json.dumps({"execute": command, "arguments": arguments}).encode()
        self._file.write(line + b"\n")
        self._file.flush()
        while True:
            answer = json.loads(self._file.readline())
            if "event" not in answer:
                assert "return" in answer, answer
                return answer["return"]


def wait_for(text: bytes, console: socket.socket, seconds: float = 180) -> bytes:
    """What the console said up to and including `text`."""
    seen = b""
    deadline = time.monotonic() + seconds
    console.settimeout(1)
    while text not in seen:
        assert time.monotonic() < deadline, f"no {text!r} in {seen[-2000:]!r}"
        with contextlib.suppress(TimeoutError):
            part = console.recv(4096)
            assert part, f"the console closed after {seen[-2000:]!r}"
            seen += part
    return seen


@cache
def probe() -> str:
    """Path of a static program without a C library that makes one system call and exits.

    Built once per test process into a folder that goes away with it. `probe NUMBER ARG...` exits
    with 0 when the call returned, 1 when it answered ENOSYS. Without arguments it waits for ever.
    """
    folder = Path(tempfile.mkdtemp(prefix="boxtest-probe-"))
    atexit.register(shutil.rmtree, folder)
    folder.chmod(0o755)
    binary = folder / "probe"
    source = Path(__file__).with_name("jail_probe.c")
    flags = ["-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-O1"]
    subprocess.run(["cc", *flags, "-o", binary, source], check=True)
    binary.chmod(0o755)
    return str(binary)


def initramfs(script: str) -> bytes:
    """A busybox guest that loads the transport modules and runs `script`."""
    folder = GUEST_KERNEL.parent / "modules"
    modules = [found for name in MODULES for found in folder.rglob(f"{name}.ko")]
    entries = [cpio.folder(name) for name in ("bin", "proc", "sys", "dev", "modules", "mnt")]
    entries.append(cpio.character("dev/console", 5, 1))
    entries.append(cpio.regular("bin/busybox", Path("/usr/bin/busybox").read_bytes(), 0o755))
    head = "#!/bin/busybox sh\n/bin/busybox --install -s /bin\nmount -t proc proc /proc\n"
    head += "mount -t sysfs sys /sys\nmount -t devtmpfs dev /dev\n"
    for module in modules:
        entries.append(cpio.regular(f"modules/{module.name}", module.read_bytes()))
    for module in modules:
        head += f"insmod /modules/{module.name}\n"
    entries.append(cpio.regular("init", (head + script).encode(), 0o755))
    return cpio.archive(entries)
