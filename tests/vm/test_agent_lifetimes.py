"""How commands end, many at once, and the guard around PID 1. One VM for the module."""

from __future__ import annotations

import asyncio
import hashlib
import resource
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from agent.client import AgentClient, ExecRequest
from tests.conftest import Evidence
from tests.vm import bare
from tests.vm.agent_vm import alive, booted, gone, prompt, run, shell, works_again


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory, evidence: Evidence) -> Iterator[bare.BareVm]:
    with booted(tmp_path_factory.mktemp("agent"), evidence, "agent-lifetimes") as machine:
        yield machine


@pytest.fixture
async def guest(vm: bare.BareVm) -> AsyncIterator[AgentClient]:
    client = await vm.connect()
    yield client
    await client.close()


# -- ends of whole trees --------------------------------------------------------------------------

ESCAPE = "setsid sh -c 'sh -c \"sleep {0}\" & sleep {0}' >/dev/null 2>&1 & sleep {0}"


async def test_timeout_kills_setsid_and_double_forks(guest: AgentClient) -> None:
    began = time.monotonic()
    how, _ = await shell(guest, ESCAPE.format(7001), timeout_ms=1000)
    assert (how.kind, how.shell_status) == ("timeout", 124)
    # By the guest's clock, which an emulated CPU on a busy host lets run faster than the host's.
    assert time.monotonic() - began > 0.5
    assert await gone(guest, "sleep 7001")


async def test_output_before_a_timeout_is_delivered(guest: AgentClient) -> None:
    how, out = await shell(guest, "echo early; sleep 60", timeout_ms=1000)
    assert (how.kind, out) == ("timeout", "early\n")


async def test_kill_ends_the_whole_tree(guest: AgentClient) -> None:
    process = await guest.exec(ExecRequest((b"sh", b"-c", ESCAPE.format(7002).encode()), {}))
    await asyncio.sleep(0.5)
    assert await alive(guest, "sleep 7002")
    await process.kill(9)
    async with asyncio.timeout(30):
        how, _, _ = await process.collect()
    assert how.shell_status == 137
    assert await gone(guest, "sleep 7002")


async def test_other_signals_reach_the_command(guest: AgentClient) -> None:
    script = b"trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    process = await guest.exec(ExecRequest((b"sh", b"-c", script), {}))
    async with asyncio.timeout(30):
        assert await process.read() == ("stdout", b"ready\n")
        await process.kill(15)
        how, out, _ = await process.collect()
    assert (how.kind, how.value, out) == ("exit", 3, b"caught\n")


async def test_abandoned_command_is_killed(guest: AgentClient) -> None:
    process = await guest.exec(ExecRequest((b"sh", b"-c", ESCAPE.format(7003).encode()), {}))
    await asyncio.sleep(0.5)
    await process.abandon()
    async with asyncio.timeout(30):
        await process.wait()
    assert await gone(guest, "sleep 7003")


async def test_lost_client_ends_its_commands(vm: bare.BareVm, guest: AgentClient) -> None:
    process = await guest.exec(ExecRequest((b"sh", b"-c", ESCAPE.format(7004).encode()), {}))
    await asyncio.sleep(0.5)
    await guest.close()
    assert (await process.wait()).kind == "lost"
    again = await vm.connect()
    try:
        assert await gone(again, "sleep 7004")
    finally:
        await again.close()


async def test_commands_of_a_host_that_stays_away_end_without_it(
    vm: bare.BareVm, guest: AgentClient
) -> None:
    # Moved, so that the file is whole whenever the command is killed.
    keep = b"cut -d. -f1 /proc/uptime >/tmp/new; mv /tmp/new /tmp/last"
    script = keep + b"; echo begun; while :; do " + keep + b"; sleep 0.1; done"
    process = await guest.exec(ExecRequest((b"sh", b"-c", script), {}))
    async with asyncio.timeout(30):
        assert await process.read() == ("stdout", b"begun\n")
    await guest.close()
    await asyncio.sleep(12)  # the agent takes a host for gone after 2 s, later on a busy one
    again = await vm.connect()
    try:
        _, out = await shell(again, "cut -d. -f1 /proc/uptime /tmp/last")
        now, last = map(int, out.split())
        assert now - last >= 3, "seconds since the command was last seen alive"
    finally:
        await again.close()


@pytest.mark.timeout(400)
async def test_a_session_outlives_the_news_that_the_host_before_it_has_left(
    vm: bare.BareVm, guest: AgentClient
) -> None:
    # The guest may read hello before it hears that the last host has left: of quick reconnections
    # about one in three hundred, and every one of those once cost the new session.
    for _ in range(300):
        await guest.close()
        guest = await vm.connect()
        for _ in range(3):
            await guest.ping()
    assert (await run(guest, "echo", "ok"))[1] == b"ok\n"
    await guest.close()


async def test_what_a_command_leaves_running_stays(vm: bare.BareVm, guest: AgentClient) -> None:
    began = time.monotonic()
    # It holds stdout, and writes to it later: neither delays the end nor kills it.
    script = "(while :; do echo x; sleep 0.1; done; : marked-7005) & echo started"
    how, out = await shell(guest, script)
    assert (how.kind, how.value) == ("exit", 0)
    assert out.startswith(("started", "x"))
    assert time.monotonic() - began < 30, "it holds stdout for ever"
    await asyncio.sleep(0.5)
    assert await alive(guest, "marked-7005")
    await guest.close()
    again = await vm.connect()
    try:
        assert await alive(again, "marked-7005")
        await shell(again, "kill $(ps -o pid,args | grep '[m]arked-7005' | awk '{print $1}')")
        assert await gone(again, "marked-7005")
    finally:
        await again.close()


# -- many at once ---------------------------------------------------------------------------------


async def test_many_commands_at_once(guest: AgentClient) -> None:
    results = await asyncio.gather(
        *(run(guest, "sh", "-c", f"sleep 0.2; echo {n}; exit {n}") for n in range(40))
    )
    assert [(how.value, out) for how, out, _ in results] == [(n, b"%d\n" % n) for n in range(40)]


async def test_too_many_commands_are_refused_and_the_agent_lives(guest: AgentClient) -> None:
    sleepers = [await guest.exec(ExecRequest((b"sleep", b"60"), {})) for _ in range(140)]
    refused = sleepers[128:]
    async with asyncio.timeout(60):
        ends = [await process.wait() for process in refused]
    assert {how.kind for how in ends} == {"refused"}
    for process in sleepers:
        await process.abandon()
    async with asyncio.timeout(60):
        for process in sleepers:
            await process.wait()
    assert await gone(guest, "sleep 60")
    assert (await run(guest, "echo", "ok"))[1] == b"ok\n"


@pytest.mark.timeout(400)
async def test_slow_reader_of_large_output_blocks_nobody(guest: AgentClient) -> None:
    piece_size, times = 10 << 20, 10
    size = piece_size * times
    # Made once and repeated: under emulation `yes` is slower than the channel.
    for line in ("out", "err"):
        await shell(guest, f"yes {line} | head -c {piece_size} > /tmp/{line}")
    repeat = " ".join(map(str, range(times)))
    script = (
        f"(for i in {repeat}; do cat /tmp/out; done) &"
        f" (for i in {repeat}; do cat /tmp/err; done >&2) & wait; rm /tmp/out /tmp/err"
    )
    process = await guest.exec(ExecRequest((b"sh", b"-c", script.encode()), {}))
    hashes = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
    sizes = {"stdout": 0, "stderr": 0}
    await asyncio.sleep(1)
    for _ in range(3):
        assert await prompt(guest)
    reads = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with asyncio.timeout(240):
        while (piece := await process.read())[0] != "end":
            hashes[piece[0]].update(piece[1])
            sizes[piece[0]] += len(piece[1])
            reads += 1
            if reads % 200 == 0:
                await asyncio.sleep(0.05)
    assert (await process.wait()).value == 0
    assert sizes == {"stdout": size, "stderr": size}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 * 1024, "KiB of memory for 200 MB of output"
    for name, word in (("stdout", b"out\n"), ("stderr", b"err\n")):
        assert hashes[name].digest() == hashlib.sha256(word * (size // 4)).digest()


async def test_reader_that_never_reads_and_leaves_takes_its_command_along(
    guest: AgentClient,
) -> None:
    process = await guest.exec(ExecRequest((b"sh", b"-c", b"yes marked-7006"), {}))
    await asyncio.sleep(1)
    assert await prompt(guest)
    await process.abandon()
    assert await gone(guest, "yes marked-7006")


# -- the guard around PID 1 -----------------------------------------------------------------------


async def test_workload_sees_neither_agent_nor_its_files(guest: AgentClient) -> None:
    _, out = await shell(
        guest,
        "ps -o pid,args; ls /init /modules /sysroot /ram 2>&1; ls /dev; cat /proc/1/cgroup;"
        " mkdir -p /tmp/g && mount -t cgroup2 g /tmp/g && ls -d /tmp/g/work /tmp/g/init 2>&1;"
        " umount /tmp/g",
    )
    assert "box-agent" not in out
    assert "vport" not in out
    assert "vda" not in out
    assert out.count("No such file") == 6, out


async def test_workload_cannot_signal_the_agent_or_end_its_init(guest: AgentClient) -> None:
    await shell(guest, "kill -9 1; kill -TERM 1; kill -9 -1; true")
    await guest.ping(30)
    assert (await run(guest, "echo", "ok"))[1] == b"ok\n"


async def test_workload_that_reboots_ends_the_workloads_not_the_guest(guest: AgentClient) -> None:
    await run(guest, "reboot", "-f")
    await guest.ping(30)
    assert await works_again(guest)


async def test_fork_bomb_does_not_stop_the_agent(guest: AgentClient) -> None:
    how, _ = await shell(guest, "f() { f | f & }; f; sleep 30", timeout_ms=2000)
    assert how.kind == "timeout"
    await guest.ping(30)
    assert await works_again(guest)


async def test_memory_exhaustion_spares_the_agent(guest: AgentClient) -> None:
    how, _ = await shell(guest, "x=x; while :; do x=$x$x$x; done", timeout_ms=20000)
    assert how.kind in ("signal", "exit", "timeout")
    assert (await run(guest, "echo", "ok"))[1] == b"ok\n"


async def test_a_command_that_eats_all_memory_is_ended_and_nobody_waits(guest: AgentClient) -> None:
    """Decided in the group of the commands, before the kernel itself has to look for memory."""
    hog = asyncio.create_task(run(guest, "tail", "/dev/zero"))  # holds the line, which has no end
    while not hog.done():
        await guest.ping(20)
        await asyncio.sleep(0.1)
    assert (hog.result()[0].kind, hog.result()[0].value) == ("signal", signal.SIGKILL)
    _, said = await shell(guest, "dmesg | grep oom-kill:")
    last = said.splitlines()[-1]
    assert "CONSTRAINT_MEMCG" in last and "oom_memcg=/work" in last and "task=tail" in last


def test_console_shows_no_panic(vm: bare.BareVm) -> None:
    text = vm.console.read_text(errors="replace")
    assert "Kernel panic" not in text
    assert "Oops" not in text
