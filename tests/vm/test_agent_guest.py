"""The guest as a machine: sessions and tokens, files, the root, /data, clock, shutdown."""

from __future__ import annotations

import asyncio
import os
import stat
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent import codec, messages
from agent.client import AgentClient, ExecRequest, GuestError
from specs.errors import ChannelError
from tests.conftest import Evidence
from tests.vm import bare
from tests.vm.agent_vm import gone


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """initramfs and root image, shared by every VM here."""
    folder = tmp_path_factory.mktemp("agent-parts")
    return bare.initramfs(folder / "initrd"), bare.busybox_image(folder)


@pytest.fixture(scope="module")
def vm(
    parts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory, evidence: Evidence
) -> Iterator[bare.BareVm]:
    """Booted, but nobody has said hello yet: the first test does."""
    folder = tmp_path_factory.mktemp("agent-guest")
    data = bare.data_disk(folder / "data.img", 64)
    machine = bare.BareVm(folder / "vm", initrd=parts[0], root=parts[1], data=data)
    evidence.watch(machine.folder, "agent-guest")
    try:
        machine.start()
        yield machine
    finally:
        machine.stop()
        evidence.forget(machine.folder)


@pytest.fixture
async def guest(vm: bare.BareVm) -> AsyncIterator[AgentClient]:
    client = await vm.connect()
    yield client
    await client.close()


async def shell(guest: AgentClient, script: str) -> str:
    process = await guest.exec(ExecRequest((b"sh", b"-c", script.encode()), {}))
    async with asyncio.timeout(60):
        how, out, err = await process.collect()
    assert (how.kind, how.value) == ("exit", 0), (how, err)
    return out.decode()


# -- sessions (in this order: the first one sets the token) ---------------------------------------


async def test_before_the_first_connection_any_other_is_refused(vm: bare.BareVm) -> None:
    with pytest.raises(ChannelError, match="no token yet"):
        await vm.connect()


async def test_first_connection_sets_token_clock_and_describes_the_guest(vm: bare.BareVm) -> None:
    client = await vm.connect(first=True)
    hello = client.hello
    assert (hello.protocol, hello.root, hello.machine) == (1, "overlay", "x86_64")
    assert hello.kernel == bare.kernel().release
    assert hello.data == f"ext4 {64 << 20}"
    assert {"exec", "rotate", "reseed", "clock", "resize"} <= hello.capabilities
    before = time.time()
    now = float(await shell(client, "date +%s"))
    assert before - 5 < now < time.time() + 5
    await client.close()


@pytest.mark.parametrize("first", [False, True])
async def test_wrong_token_is_refused(vm: bare.BareVm, first: bool) -> None:
    with pytest.raises(ChannelError, match="does not accept this token"):
        await vm.connect(first=first, token=bytes(32))
    client = await vm.connect()
    await client.close()


async def test_rotated_token_replaces_the_old_one(vm: bare.BareVm, guest: AgentClient) -> None:
    old, new = vm.token, os.urandom(32)
    await guest.rotate_token(new)
    await guest.close()
    vm.token = new
    with pytest.raises(ChannelError, match="does not accept this token"):
        await vm.connect(token=old)
    client = await vm.connect()
    assert client.hello.boot_id
    await client.close()


async def hello_bytes(vm: bare.BareVm) -> bytes:
    return codec.RESYNC + messages.hello(os.urandom(16), vm.token, first=False)


def exec_frames(stream: int, script: bytes) -> bytes:
    body = messages.exec_body(ExecRequest((b"sh", b"-c", script), {}))
    return b"".join(messages.request(stream, messages.Kind.EXEC, body))


@pytest.mark.parametrize("keep", [1, 5, 11, 12, 30, -1])
async def test_reconnect_after_a_frame_was_cut_short(vm: bare.BareVm, keep: int) -> None:
    """A host that dies in the middle of a frame leaves nothing half done."""
    _, writer = await vm.streams()
    frame = exec_frames(1, b"echo ran > /tmp/half")
    writer.write(await hello_bytes(vm) + frame[:keep])
    await writer.drain()
    writer.transport.abort()
    client = await vm.connect()
    assert (await shell(client, "ls /tmp/half 2>/dev/null || echo no")) == "no\n"
    await client.close()


async def test_reconnect_while_output_streams(vm: bare.BareVm) -> None:
    for _ in range(5):
        reader, writer = await vm.streams()
        writer.write(await hello_bytes(vm) + exec_frames(1, b"yes"))
        await writer.drain()
        await reader.readexactly(100)
        writer.transport.abort()
        client = await vm.connect()
        assert await shell(client, "echo ok") == "ok\n"
        await client.close()


@pytest.mark.parametrize("seed", range(5))
async def test_garbage_from_the_host_never_ends_the_agent(vm: bare.BareVm, seed: int) -> None:
    import random

    dice = random.Random(seed)
    _, writer = await vm.streams()
    good = await hello_bytes(vm) + exec_frames(1, b"sleep 60") + exec_frames(2, b"cat")
    writer.write(await hello_bytes(vm))
    for _ in range(40):
        piece = bytearray(good[-dice.randrange(1, 400) :])
        for _ in range(dice.randrange(5)):
            piece[dice.randrange(len(piece))] = dice.randrange(256)
        kind = dice.randrange(256)
        size = dice.randrange(200)
        writer.write(codec.encode(max(kind, 1), dice.randrange(4), dice.randbytes(size)))
        writer.write(bytes(piece))
    await writer.drain()
    writer.transport.abort()
    client = await vm.connect()
    assert await shell(client, "echo ok") == "ok\n"
    await client.close()


@pytest.mark.parametrize("wrong", [b"no frame" * 2, codec.encode(2, 7)[:-1] + b"?"])
async def test_host_is_told_at_once_of_a_session_that_ended_over_a_wrong_frame(
    vm: bare.BareVm, wrong: bytes
) -> None:
    client = await vm.connect()
    process = await client.exec(ExecRequest((b"sleep", b"600"), {}))
    await client._send(wrong)
    async with asyncio.timeout(40):
        assert (await process.wait()).kind == "lost"
        await client.closed.wait()
    assert "no frame" in str(client.failure)
    client = await vm.connect()
    assert await gone(client, "sleep")
    await client.close()


async def test_requests_that_lie_about_their_size_are_refused(guest: AgentClient) -> None:
    huge = struct.pack(">BI", messages.Kind.EXEC, 0xFFFFFFFF)
    short = struct.pack(">BI", messages.Kind.EXEC, 4) + b"longer than four"
    for number, payload in ((900, huge), (901, short)):
        process = await guest.exec(ExecRequest((b"sleep", b"60"), {}))
        guest._processes[number] = process  # a stream number of our own choosing
        await guest._send(codec.encode(codec.ToGuest.REQUEST, number, payload))
        async with asyncio.timeout(30):
            assert (await process.wait()).kind == "refused"
        real = next(n for n, p in guest._processes.items() if p is process)
        await guest._send(codec.encode(codec.ToGuest.KILL, real, bytes((9, 1))))
    assert await shell(guest, "echo ok") == "ok\n"


async def test_reseed_and_clock_are_checked(guest: AgentClient) -> None:
    await guest.reseed(os.urandom(512))
    with pytest.raises(GuestError, match="malformed"):
        await guest.reseed(b"short")
    await guest.set_clock(1_000_000_000 * 10**9)
    assert (await shell(guest, "date -u +%Y")) == "2001\n"
    await guest.set_clock(time.time_ns())


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65536, 3_000_000])
async def test_file_written_is_read_back(guest: AgentClient, size: int) -> None:
    content = os.urandom(size)
    await guest.write_file("/data/file", content, mode=0o640, uid=1000, gid=29)
    assert await guest.read_file("/data/file") == content
    assert await shell(guest, "stat -c '%a %u %g' /data/file; ls -a /data") == (
        "640 1000 29\n.\n..\nfile\nlost+found\n"
    )


async def test_written_file_replaces_a_link_and_not_its_target(guest: AgentClient) -> None:
    await shell(guest, "echo canary > /tmp/canary; ln -sf /tmp/canary /tmp/link")
    await guest.write_file("/tmp/link", b"new")
    assert await shell(guest, "cat /tmp/canary /tmp/link") == "canary\nnew"


@pytest.mark.parametrize("path", ["/tmp/fifo", "/dev/zero", "/etc", "/absent", "/tmp/loop"])
async def test_only_regular_files_are_read(guest: AgentClient, path: str) -> None:
    await shell(guest, "mkfifo -m 600 /tmp/fifo 2>/dev/null; ln -sf loop /tmp/loop; true")
    async with asyncio.timeout(30):
        with pytest.raises(GuestError, match=f"cannot read {path}: "):
            await guest.read_file(path)


@pytest.mark.parametrize("path", ["/absent/file", "/etc", "/proc/file", "/tmp/"])
async def test_file_that_cannot_be_written_says_why(guest: AgentClient, path: str) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(GuestError, match=f"cannot write {path}: "):
            await guest.write_file(path, b"x" * 200_000)


async def test_read_limit_holds(guest: AgentClient) -> None:
    await shell(guest, "head -c 3000000 /dev/zero > /tmp/large")
    with pytest.raises(GuestError, match="more than 1000000 bytes"):
        await guest.read_file("/tmp/large", 1_000_000)
    assert len(await guest.read_file("/tmp/large", 3_000_000)) == 3_000_000


# -- root and data --------------------------------------------------------------------------------


async def test_root_is_writable_and_the_image_is_not(vm: bare.BareVm, guest: AgentClient) -> None:
    assert vm.root is not None
    before = vm.root.read_bytes()
    await shell(guest, "echo x > /etc/new; rm /etc/group; test -e /etc/new")
    await shell(guest, "printf 'root:x:0:\\n' > /etc/group")
    assert vm.root.read_bytes() == before


async def test_data_is_mounted_without_setuid_and_devices(guest: AgentClient) -> None:
    options = await shell(guest, "grep ' /data ' /proc/mounts")
    assert "nosuid" in options
    assert "nodev" in options
    assert "ext4" in options


async def test_data_grows_while_the_guest_runs(vm: bare.BareVm, guest: AgentClient) -> None:
    await shell(guest, "echo kept > /data/before")
    vm.qmp("block_resize", **{"node-name": "data", "size": 256 << 20})
    assert await guest.resize_data(256 << 20) == 256 << 20
    assert await shell(guest, "cat /data/before") == "kept\n"
    free = int(await shell(guest, "df -k /data | tail -1 | awk '{print $2}'"))
    assert free > 200 * 1024
    assert await guest.resize_data() == 256 << 20


async def test_growing_to_a_size_the_disk_has_not_is_an_error(guest: AgentClient) -> None:
    with pytest.raises(GuestError, match="cannot grow /data"):
        await guest.resize_data(1 << 40)


async def test_readonly_root_without_overlay(
    parts: tuple[Path, Path], tmp_path: Path, evidence: Evidence
) -> None:
    machine = bare.BareVm(tmp_path / "vm", initrd=parts[0], root=parts[1])
    evidence.watch(machine.folder, "agent-readonly")
    try:
        machine.start(append="box.readonly=1 box.hostname=fern")
        client = await machine.connect(first=True)
        assert (client.hello.root, client.hello.data) == ("readonly", "none")
        out = await shell(
            client,
            "echo x 2>&1 > /etc/x || true; mount -o remount,rw / 2>&1 || true;"
            " echo x > /etc/x 2>&1 || true; ls /etc/x 2>&1 || true; hostname;"
            " echo a > /tmp/a; echo b > /run/b; cat /tmp/a /run/b; grep ' / ' /proc/mounts",
        )
        assert "fern\na\nb\n" in out
        assert "squashfs ro" in out
        with pytest.raises(GuestError):
            await client.write_file("/etc/y", b"")
        await client.close()
    finally:
        machine.stop()


async def test_shutdown_keeps_data_and_growth_happens_at_boot(
    parts: tuple[Path, Path], tmp_path: Path, evidence: Evidence
) -> None:
    data = bare.data_disk(tmp_path / "data.img", 64)
    machine = bare.BareVm(tmp_path / "vm", initrd=parts[0], root=parts[1], data=data)
    evidence.watch(machine.folder, "agent-shutdown")
    try:
        machine.start()
        client = await machine.connect(first=True)
        await shell(client, "echo fresh > /data/fresh; head -c 5000000 /dev/urandom > /data/big")
        checksum = await shell(client, "sha256sum < /data/big")
        loop = b"echo begun; while :; do sleep 0.05; done"
        script = b"trap 'echo ended > /data/ended; exit' TERM; " + loop
        process = await client.exec(ExecRequest((b"sh", b"-c", script), {}))
        stubborn = b"trap '' TERM; cd /data; exec 9> held; " + loop
        other = await client.exec(ExecRequest((b"sh", b"-c", stubborn), {}))
        async with asyncio.timeout(30):
            for each in (process, other):
                assert await each.read() == ("stdout", b"begun\n")
        await client.shutdown(timeout=60, grace=3)
        assert (await process.wait()).kind == "lost"
        assert machine.wait(60) == 0
        # Bytes 58-59 of the superblock, bit 0: unmounted cleanly (ext4's s_state).
        with data.open("rb") as file:
            file.seek(1024 + 58)
            state = struct.unpack("<H", file.read(2))[0]
            file.seek(1024 + 96)
            needs_recovery = struct.unpack("<I", file.read(4))[0] & 4
        assert state & 1
        assert not needs_recovery

        with data.open("r+b") as file:
            file.truncate(200 << 20)
        machine.start()
        client = await machine.connect(first=True)
        assert client.hello.data == f"ext4 {200 << 20}"
        assert await shell(client, "cat /data/fresh /data/ended") == "fresh\nended\n"
        assert await shell(client, "sha256sum < /data/big") == checksum
        await client.close()
    finally:
        machine.stop()


async def test_missing_root_disk_is_told_and_commands_are_refused(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    machine = bare.BareVm(tmp_path / "vm", initrd=parts[0], root=None)
    try:
        machine.start()
        client = await machine.connect(first=True)
        assert client.hello.root.startswith("failed: no disk")
        process = await client.exec(ExecRequest((b"true",), {}))
        async with asyncio.timeout(30):
            how = await process.wait()
        assert how.kind == "refused"
        assert "no disk" in how.message
        await client.shutdown()
        assert machine.wait(60) == 0
    finally:
        machine.stop()


async def test_vm_death_in_mid_command_is_lost_and_never_a_status(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    machine = bare.BareVm(tmp_path / "vm", initrd=parts[0], root=parts[1])
    try:
        machine.start()
        client = await machine.connect(first=True)
        process = await client.exec(ExecRequest((b"sleep", b"60"), {}))
        await asyncio.sleep(0.3)
        machine.stop()
        async with asyncio.timeout(30):
            how = await process.wait()
        assert (how.kind, how.shell_status) == ("lost", 125)
        with pytest.raises(ChannelError):
            await client.ping()
    finally:
        machine.stop()


def test_agent_socket_is_a_socket(vm: bare.BareVm) -> None:
    assert stat.S_ISSOCK((vm.folder / "agent.sock").stat().st_mode)
