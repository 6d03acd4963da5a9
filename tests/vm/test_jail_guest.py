"""A real guest in the jail: everything QEMU has to do while it serves one is let through."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from reconcilers.confinement.policy import MIB, rlimits_for
from reconcilers.confinement.readback import read_vmm
from tests.conftest import GUEST_KERNEL
from tests.vm.jailed import QEMU, SANDBOX_OPTIONS, Jail, Qmp, initramfs, jail, wait_for

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

DISK = 16 * MIB
# Writes, reads back, flushes, zeroes and discards; then reports sizes whenever the disk changes.
SCRIPT = """

echo MARK booted
dd if=/dev/zero of=/dev/vda bs=1M count=8 conv=fsync 2>/dev/null
echo hello-disk | dd of=/dev/vda bs=512 seek=3 conv=fsync 2>/dev/null
echo 3 > /proc/sys/vm/drop_caches
echo MARK read $(dd if=/dev/vda bs=512 skip=3 count=1 2>/dev/null | head -n 1)
/bin/busybox blkdiscard /dev/vda && echo MARK discarded
/bin/busybox mke2fs /dev/vda >/dev/null 2>&1 && mount -t ext4 /dev/vda /mnt && echo MARK mounted
echo words > /mnt/file; sync
echo MARK file $(cat /mnt/file)
before=$(cat /sys/block/vda/size)
echo MARK waiting
while [ $(cat /sys/block/vda/size) = $before ]; do sleep 0.1; done
echo MARK grown $(cat /sys/block/vda/size)
dd if=/dev/zero of=/dev/vda bs=1M seek=16 count=8 conv=fsync 2>/dev/null && echo MARK beyond
while read line; do echo MARK heard $line; done
"""


@dataclass
class Guest:
    jail: Jail
    disk: Path
    console: socket.socket
    said: bytes


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(jail())
        disk = made.folder / "disk"
        disk.write_bytes(b"")
        os.truncate(disk, DISK)
        initrd = made.folder / "initrd"
        initrd.write_bytes(initramfs(SCRIPT))
        initrd.chmod(0o644)

        def opened(path: Path, flags: int) -> int:
            descriptor = os.open(path, flags)
            stack.callback(os.close, descriptor)
            return descriptor

        made.listen(3)
        made.listen(4)
        khz = next(
            int(float(line.split(":")[1]) * 1000)
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("cpu MHz")
        )
        made.start(
            QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-name", made.names.marker,
            "-M", "microvm,rtc=on,pit=off,pic=off,isa-serial=on",
            "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max", "-smp", "2", "-m", "256",
            "-sandbox", SANDBOX_OPTIONS,
            "-kernel", "/kernel", "-initrd", "/initrd",
            "-append", f"console=ttyS0 reboot=t panic=-1 quiet tsc_early_khz={khz}",
            "-chardev", "socket,id=qmp,fd=3,server=on,wait=off", "-mon", "chardev=qmp,mode=control",
            "-chardev", "socket,id=console,fd=4,server=on,wait=off", "-serial", "chardev:console",
            "-add-fd", "fd=7,set=2", "-blockdev",
            "driver=raw,node-name=data,discard=unmap,detect-zeroes=unmap,file.driver=file,"
            "file.filename=/dev/fdset/2",
            "-device", "virtio-blk-device,drive=data,serial=data",
            descriptors={7: opened(disk, os.O_RDWR)},
            binds={
                "/kernel": opened(GUEST_KERNEL, os.O_RDONLY),
                "/initrd": opened(initrd, os.O_RDONLY),
            },
        )  # fmt: skip
        made.close_sockets()
        console = made.connect(4)
        stack.callback(console.close)
        try:
            said = wait_for(b"MARK waiting", console)
        except AssertionError as error:
            raise AssertionError(f"{error}; QEMU said {made.errors()!r}") from None
        yield Guest(made, disk, console, said)


def test_guest_reads_writes_flushes_and_discards(guest: Guest) -> None:
    for mark in (b"booted", b"read hello-disk", b"discarded", b"mounted", b"file words"):
        assert b"MARK " + mark in guest.said, guest.said[-3000:]
    with guest.disk.open("rb") as file:
        file.seek(1024 + 56)
        assert file.read(2) == b"\x53\xef", "no ext4 superblock reached the host's file"


def test_running_guest_is_read_back_without_a_difference(guest: Guest) -> None:
    made = guest.jail
    assert made.launched is not None
    readings = read_vmm(made.pid, made.want, made.names, at_launch=made.launched.at_launch)
    assert [reading for reading in readings if not reading.ok] == []


@pytest.mark.quiet  # what shares the processors' caches costs it time, too
def test_readback_of_a_running_guest_costs_under_three_milliseconds(guest: Guest) -> None:
    made = guest.jail
    assert made.launched is not None
    costs = []
    for _ in range(9):
        begun = time.process_time()
        read_vmm(made.pid, made.want, made.names, at_launch=made.launched.at_launch)
        costs.append(time.process_time() - begun)
    assert sorted(costs)[4] < 0.003, costs


def test_disk_grows_under_the_running_guest(guest: Guest) -> None:
    """block_resize and then writes beyond the size the limits were made for."""

    from reconcilers.confinement.mend import mend

    made = guest.jail
    assert made.launched is not None
    os.truncate(guest.disk, 2 * DISK)
    made.want = replace(made.want, rlimits=rlimits_for(disk_bytes=128 * MIB))
    readings = read_vmm(made.pid, made.want, made.names, at_launch=made.launched.at_launch)
    assert [reading.item for reading in readings if not reading.ok] == ["fsize"]
    mend(made.pid, made.want, made.names, readings)
    again = read_vmm(made.pid, made.want, made.names, at_launch=made.launched.at_launch)
    assert [reading for reading in again if not reading.ok] == []
    qmp = Qmp(made.connect(3))
    qmp("block_resize", **{"node-name": "data", "size": 2 * DISK})
    said = wait_for(b"MARK beyond", guest.console)
    assert b"MARK grown %d" % (2 * DISK // 512) in said


def test_monitor_commands_are_served_until_quit(guest: Guest) -> None:
    """Last in the file: it ends the VMM."""
    made = guest.jail
    qmp = Qmp(made.connect(3))
    qmp("stop")
    assert qmp("query-status")["status"] == "paused"
    qmp("cont")
    qmp("query-block")
    qmp("query-cpus-fast")
    qmp("query-fdsets")
    qmp("system_powerdown")
    qmp("human-monitor-command", **{"command-line": "info registers"})
    guest.console.sendall(b"one\n")
    wait_for(b"MARK heard one", guest.console)
    qmp("quit")
    assert made.ended() == (os.CLD_EXITED, 0), made.errors()
