"""The guest's side of a running VM: opening its channel, and proving from outside what can be
proved.

A guest may lie, so nothing it says is proof by itself: its words are compared with what the host
started, and the facts that decide (which process, which executable, which kernel file) are read
from the host.
"""

from __future__ import annotations

import asyncio
import platform
from dataclasses import dataclass, replace

from agent.client import AgentClient, GuestError, Hello
from reconcilers import launchrecord, procfs
from reconcilers.backend import mount_tag
from reconcilers.launchrecord import LaunchRecord
from reconcilers.layout import Layout
from reconcilers.sockets import connect
from specs.boxfile import Boxfile, MountMode
from specs.errors import ChannelError, KernelMismatch

# An emulated guest needs 3 s on an idle host; a loaded one many times that.
BOOT_TIMEOUT = 90.0
ANSWER_TIMEOUT = 10.0
READONLY_FIX = "with readonly: true name a guest path that the image has, or one in /tmp or /run"


@dataclass(frozen=True)
class Proof:
    """One statement about the guest's kernel, what was wanted and what was read."""

    item: str
    want: str
    got: str
    ok: bool
    source: str


async def open_channel(
    layout: Layout, name: str, record: LaunchRecord
) -> tuple[AgentClient, LaunchRecord]:
    """Connect to the guest agent; the first time this also sets its token. Raises ChannelError.

    Returns the record with the guest's boot id, already written down, so that a restarted
    controller knows the guest.
    """
    first = not record.claimed
    limit = BOOT_TIMEOUT if first else ANSWER_TIMEOUT
    reader, writer = await asyncio.open_connection(sock=connect(layout.agent_socket(name)))
    try:
        client = await AgentClient.connect(
            reader, writer, token=bytes.fromhex(record.token), first=first, timeout=limit
        )
        if first:
            record = replace(record, guest_boot_id=client.hello.boot_id)
            launchrecord.write(layout.launch_record(name), record)
    except BaseException:  # the guest has one port, which would be taken
        writer.close()
        raise
    return client, record


def prove_process(record: LaunchRecord) -> tuple[Proof, ...]:
    """The cheap outside proof, repeated before every command: it is the very process that was
    launched.
    """
    living = procfs.alive(record.pid, record.start_time)
    exe = procfs.executable(record.pid) if living else None
    return (
        Proof(
            "process",
            f"PID {record.pid} started at {record.start_time}",
            "the same" if living else "gone",
            living is not None,
            f"/proc/{record.pid}/stat",
        ),
        Proof(
            "executable",
            _program(record.argv[0], record.exe) if record.argv else "recorded by the launch",
            _program(procfs.executable_path(record.pid), exe) if exe else "unreadable",
            exe == record.exe,
            f"/proc/{record.pid}/exe",
        ),
    )


def prove_kernel(record: LaunchRecord, hello: Hello) -> tuple[Proof, ...]:
    """What the guest says of its kernel, against what was started and against the host's own.

    Its release may be the host's: both can run the same distribution's kernel. Its boot id never.
    """
    ours = procfs.host_boot_id()
    same_boot = hello.boot_id == record.guest_boot_id
    return (
        Proof(
            "kernel release",
            f"{record.kernel_release}; the host's is {platform.release()}",
            hello.kernel,
            hello.kernel == record.kernel_release,
            "the guest's uname(2)",
        ),
        Proof(
            "boot id",
            f"{record.guest_boot_id}; the host's is {ours}",
            hello.boot_id,
            same_boot and hello.boot_id != ours and hello.boot_id != "",
            "the guest's /proc/sys/kernel/random/boot_id",
        ),
    )


def require_mounts(hello: Hello) -> None:
    """Raise ChannelError when the agent came up without its root or its data."""
    for what, state in (("root image", hello.root), ("data disk", hello.data)):
        if state.startswith("failed"):
            raise ChannelError(f"the guest could not mount its {what}: {state}")


def require_build(hello: Hello) -> None:
    """Raise ChannelError when what is written to the root does not go to the build's disk: the step
    would seem to work, and an empty layer would be kept as what it left.
    """
    if hello.root != "build":
        raise ChannelError(
            f"the guest's agent keeps its root elsewhere than on the disk of a build: {hello.root}",
            fix="the agent is older than box: install box again, or ./dev setup in its source",
        )


async def mount_shares(client: AgentClient, box: Boxfile) -> None:
    """Let the guest mount every host directory of its Boxfile; what is mounted stays so.

    Raises ChannelError in the guest's words when it cannot.
    """
    for index, mount in enumerate(box.mounts):
        try:
            await client.mount(mount_tag(index), mount.guest, readonly=mount.mode is MountMode.ro)
        except GuestError as error:
            fix = READONLY_FIX if box.readonly else ""
            raise ChannelError(f"mounts[{index}].guest: {error.message}", fix=fix) from error


def require_proof(record: LaunchRecord, hello: Hello) -> None:
    """Raise KernelMismatch unless process and kernel are the ones that were started."""
    for proof in (*prove_process(record), *prove_kernel(record, hello)):
        if not proof.ok:
            raise KernelMismatch(
                f"the {proof.item} is not the one that was started: "
                f"wanted {proof.want}, got {proof.got}"
            )


def _program(path: str, pair: tuple[int, int]) -> str:
    return f"{path}, inode {pair[1]} on device {pair[0]}"
