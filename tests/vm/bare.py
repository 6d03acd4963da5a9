"""A microVM without a jail: QEMU, the guest kernel, our initramfs, and the agent's channel.

For tests of the agent and as the yardstick of bench/: it must not use reconcilers or the
controller, except to pick the kernel and its modules, so that a fault there cannot hide one here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from agent.build import build_agent
from agent.client import AgentClient
from agent.initramfs import build_initramfs
from reconcilers.kernel import Kernel, boot_modules, find_kernel
from specs.config import Config

QEMU = "qemu-system-x86_64"
BUSYBOX = Path("/bin/busybox")
BOOT_SECONDS = 40.0
_FOLDERS = "bin sbin usr/bin etc proc sys dev run data mnt root tmp home"
FOLDERS = tuple(_FOLDERS.split())


def kernel() -> Kernel:
    """The kernel directory in BOX_TEST_KERNEL, else the one ./dev setup fetched."""
    return find_kernel(Config(kernel=os.environ.get("BOX_TEST_KERNEL")), Path("/nonexistent"))


def initramfs(target: Path) -> Path:
    target.write_bytes(build_initramfs(build_agent(), boot_modules(kernel())))
    return target


def tsc_khz() -> int:
    """The host's TSC frequency; without it an emulated guest's calibration may hang."""
    match = re.search(r"cpu MHz\s*:\s*([0-9.]+)", Path("/proc/cpuinfo").read_text())
    return int(float(match.group(1)) * 1000) if match else 2_000_000


def busybox_image(folder: Path, extra: Sequence[tuple[str, str, int]] = ()) -> Path:
    """A small squashfs root. `extra`: (path, content, mode)."""
    tree = folder / "tree"
    for name in FOLDERS:
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "tmp").chmod(0o1777)
    (tree / "bin/busybox").write_bytes(BUSYBOX.read_bytes())
    (tree / "bin/busybox").chmod(0o755)
    applets = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True)
    for name in set(applets.stdout.split()) - {"busybox"}:
        (tree / "bin" / name).symlink_to("busybox")
    (tree / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home:/bin/sh\n"
    )
    (tree / "etc/group").write_text("root:x:0:\nuser:x:1000:\nwheel:x:10:user\naudio:x:29:user\n")
    for path, content, mode in extra:
        (tree / path).write_text(content)
        (tree / path).chmod(mode)
    image = folder / "root.squashfs"
    options = ["-quiet", "-no-progress", "-noappend", "-comp", "lz4", "-all-root"]
    subprocess.run(["mksquashfs", tree, image, *options], check=True, stdout=subprocess.DEVNULL)
    return image


def data_disk(path: Path, mib: int) -> Path:
    with path.open("wb") as file:
        file.truncate(mib << 20)
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-F", path], check=True)
    return path


class BareVm:
    """One QEMU process. `start`, `connect`, and always `stop`."""

    def __init__(
        self,
        folder: Path,
        *,
        initrd: Path,
        root: Path | None,
        data: Path | None = None,
        transfer: Path | None = None,
    ) -> None:
        self.folder = folder
        self.initrd = initrd
        self.root = root
        self.data = data
        self.transfer = transfer
        self.token = os.urandom(32)
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0

    @property
    def console(self) -> Path:
        return self.folder / "console.log"

    def start(self, *, append: str = "", ram_mib: int = 512, cpus: int = 2) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            fds = [stack.enter_context(self._listen(name)).fileno() for name in ("agent", "qmp")]
            words = f"console=ttyS0 quiet loglevel=4 reboot=t panic=-1 cryptomgr.notests {append}"
            argv = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
            argv += ["-M", "microvm,rtc=on,pit=off,pic=off,isa-serial=on"]
            argv += ["-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max"]
            argv += ["-smp", str(cpus), "-m", f"{ram_mib}M"]
            argv += ["-kernel", str(kernel().image), "-initrd", str(self.initrd)]
            argv += ["-append", f"{words} tsc_early_khz={tsc_khz()}"]
            argv += ["-chardev", f"file,id=console,path={self.console}"]
            argv += ["-serial", "chardev:console"]
            argv += ["-chardev", f"socket,id=qmp,fd={fds[1]},server=on,wait=off"]
            argv += ["-mon", "chardev=qmp,mode=control"]
            argv += ["-chardev", f"socket,id=agent,fd={fds[0]},server=on,wait=off"]
            argv += ["-device", "virtio-serial-device"]
            argv += ["-device", "virtserialport,chardev=agent,name=box.agent.0"]
            disks = (("root", self.root), ("data", self.data), ("transfer", self.transfer))
            for name, path in disks:
                if path is not None:
                    access = "on" if name == "root" else "off"
                    drive = f"driver=raw,node-name={name},read-only={access},file.driver=file"
                    argv += ["-blockdev", f"{drive},file.filename={path}"]
                    argv += ["-device", f"virtio-blk-device,drive={name},serial={name}"]
            self.started = time.monotonic()
            self.process = subprocess.Popen(
                argv, pass_fds=fds, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT
            )

    def _listen(self, name: str) -> socket.socket:
        path = self.folder / f"{name}.sock"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(1)
        return listener

    async def connect(self, *, first: bool = False, token: bytes | None = None) -> AgentClient:
        reader, writer = await self.streams()
        return await AgentClient.connect(
            reader, writer, token=token or self.token, first=first, timeout=BOOT_SECONDS
        )

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self.folder / "agent.sock"))

    def qmp(self, command: str, **arguments: object) -> object:
        """One QMP command on a connection of its own."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(10)
            link.connect(str(self.folder / "qmp.sock"))
            with link.makefile("rwb") as lines:
                json.loads(lines.readline())
                for name, values in (("qmp_capabilities", {}), (command, arguments)):
                    request = {"execute": name, "arguments": values}
                    lines.write(json.dumps(request).encode() + b"\n")
                    lines.flush()
                    answer = {}
                    while "return" not in answer and "error" not in answer:
                        answer = json.loads(lines.readline())
                    assert "return" in answer, answer
                return answer["return"]

    def wait(self, timeout: float) -> int:
        """QEMU's exit status. Raises subprocess.TimeoutExpired."""
        assert self.process is not None
        return self.process.wait(timeout)

    def stop(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            self.process.wait(20)
            self.process = None
