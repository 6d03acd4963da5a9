"""Commands in a real guest: what arrives, what comes back, how they end. One VM for the module."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.client import AgentClient, ExecRequest, Exit
from specs.errors import UsageError
from tests.conftest import Evidence
from tests.vm import bare

SHOW_ARGUMENTS = '#!/bin/sh\nfor a in "$@"; do printf "%s\\0" "$a"; done\n'
EXTRA = (
    ("bin/show-arguments", SHOW_ARGUMENTS, 0o755),
    ("bin/not-executable", "#!/bin/sh\n", 0o644),
    ("bin/no-interpreter", "#!/bin/absent\n", 0o755),
    ("bin/no-header", "echo hi\n", 0o755),
)


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory, evidence: Evidence) -> Iterator[bare.BareVm]:
    folder = tmp_path_factory.mktemp("agent")
    root = bare.busybox_image(folder, EXTRA)
    data = bare.data_disk(folder / "data.img", 64)
    machine = bare.BareVm(
        folder / "vm", initrd=bare.initramfs(folder / "initrd"), root=root, data=data
    )
    evidence.watch(machine.folder, "agent-commands")
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


@pytest.fixture
async def guest(vm: bare.BareVm) -> AsyncIterator[AgentClient]:
    client = await vm.connect()
    yield client
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


async def gone(guest: AgentClient, mark: str, within: float = 3.0) -> bool:
    until = time.monotonic() + within
    while await alive(guest, mark):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.05)
    return True


async def works_again(guest: AgentClient, within: float = 30.0) -> bool:
    """Whether commands start, waiting for the workloads' namespace to be made anew."""
    until = time.monotonic() + within
    while (await run(guest, "echo", "ok"))[1] != b"ok\n":
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.1)
    return True


# -- bytes and ends -------------------------------------------------------------------------------


async def test_output_bytes_are_exact(guest: AgentClient) -> None:
    how, out, err = await run(guest, "printf", r"\377\000\015\012\201")
    assert (how.kind, how.value, out, err) == ("exit", 0, b"\xff\x00\x0d\x0a\x81", b"")


async def test_a_character_split_across_flushes_arrives_whole(guest: AgentClient) -> None:
    script = r"printf '\342'; sleep 0.2; printf '\202'; sleep 0.2; printf '\254'"
    _, out, _ = await run(guest, "sh", "-c", script)
    assert out.decode() == "€"


async def test_stdout_and_stderr_are_separate(guest: AgentClient) -> None:
    how, out, err = await run(guest, "sh", "-c", "echo one; echo two >&2")
    assert (how.kind, out, err) == ("exit", b"one\n", b"two\n")


@pytest.mark.parametrize(
    ("argv", "status", "kind"),
    [
        (("sh", "-c", "exit 7"), 7, "exit"),
        (("sh", "-c", "exit 255"), 255, "exit"),
        (("true",), 0, "exit"),
        (("sh", "-c", "kill -9 $$"), 137, "signal"),
        (("sh", "-c", "kill -SEGV $$"), 139, "signal"),
        (("no-such-program",), 127, "not_found"),
        (("/bin/no-such-program",), 127, "not_found"),
        (("",), 127, "not_found"),
        (("not-executable",), 126, "not_executable"),
        (("/bin/not-executable",), 126, "not_executable"),
        (("no-interpreter",), 126, "not_executable"),
        (("no-header",), 126, "not_executable"),
        (("/etc",), 126, "not_executable"),
    ],
)
async def test_exit_status_is_what_a_shell_would_report(
    guest: AgentClient, argv: tuple[str, ...], status: int, kind: str
) -> None:
    how, _, _ = await run(guest, *argv)
    assert (how.kind, how.shell_status) == (kind, status)


async def test_missing_program_is_named_in_the_message(guest: AgentClient) -> None:
    how, _, _ = await run(guest, "no-such-program")
    assert how.message == "no-such-program: not found"


async def test_stdin_reaches_the_command_and_ends(guest: AgentClient) -> None:
    content = os.urandom(300_000)
    process = await guest.exec(ExecRequest((b"sha256sum",), {}, stdin=True))
    async with asyncio.timeout(60):
        await process.write(content)
        await process.close_stdin()
        how, out, _ = await process.collect()
    assert how.value == 0
    assert out.split()[0].decode() == hashlib.sha256(content).hexdigest()


async def test_input_for_a_command_that_reads_none_does_not_block(guest: AgentClient) -> None:
    process = await guest.exec(ExecRequest((b"true",), {}, stdin=True))
    async with asyncio.timeout(30):
        with pytest.raises(BrokenPipeError):
            while True:
                await process.write(bytes(10_000))
        assert (await process.wait()).value == 0


async def test_command_without_stdin_reads_end_of_file(guest: AgentClient) -> None:
    how, out, _ = await run(guest, "cat")
    assert (how.kind, how.value, out) == ("exit", 0, b"")


# -- arguments and environment --------------------------------------------------------------------


async def test_argv_arrives_byte_exact_without_a_shell(guest: AgentClient) -> None:
    words = [b"", b"a\nb", b"'\"", b"$(id)", b"*", b"\xff\xfe", b"-", b" ", "é".encode()]
    how, out, _ = await run(guest, "show-arguments", *words)
    assert how.value == 0
    assert out.split(b"\0")[:-1] == words


async def test_twenty_thousand_arguments_and_two_megabytes_of_environment(
    guest: AgentClient,
) -> None:
    words = [f"argument {n}".encode() for n in range(20_000)]
    env = {b"BIG%d" % n: bytes([65 + n % 26]) * 100_000 for n in range(21)}
    script = 'cat /proc/self/environ | sha256sum; printf "%s\\0" "$@" | sha256sum; echo $#'
    how, out, err = await run(guest, "sh", "-c", script, "sh", *words, env=env)
    assert (how.kind, how.value, err) == ("exit", 0, b"")
    _, arguments, count = out.decode().splitlines()
    expected = hashlib.sha256(b"".join(word + b"\0" for word in words)).hexdigest()
    assert arguments.split()[0] == expected
    assert count == "20000"
    how, out, _ = await run(guest, "cat", "/proc/self/environ", env=env, limit=4 << 20)
    got = dict(line.partition(b"=")[::2] for line in out.split(b"\0") if line)
    assert {name: got[name] for name in env} == env


async def test_too_long_arguments_are_a_clear_error_and_the_agent_lives(
    guest: AgentClient,
) -> None:
    words = [b"x" * 100_000] * 70
    how, _, _ = await run(guest, "echo", *words)
    assert (how.kind, how.shell_status) == ("not_executable", 126)
    assert "argument list too long: 7" in how.message
    with pytest.raises(UsageError, match="too long"):
        await run(guest, "echo", b"x" * 140_000)
    with pytest.raises(UsageError, match="too long"):
        await run(guest, "echo", *[b"x" * 100_000] * 100)
    assert (await run(guest, "echo", "ok"))[1] == b"ok\n"


async def test_environment_is_what_was_asked_plus_the_users_own(guest: AgentClient) -> None:
    _, out, _ = await run(guest, "env", env={b"A": b"1\n2", b"HOME": b"/tmp"})
    lines = out.decode()
    assert "A=1\n2\n" in lines
    assert "HOME=/tmp\n" in lines
    assert "USER=root\n" in lines


# -- users and folders ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("", "0 0 0"),
        ("user", "1000 1000 1000 10 29"),
        ("1000", "1000 1000 1000 10 29"),
        ("user:audio", "1000 29 29"),
        ("1234", "1234 1234 1234"),
        ("1234:77", "1234 77 77"),
    ],
)
async def test_user_is_resolved_in_the_guest(guest: AgentClient, user: str, expected: str) -> None:
    how, out, err = await run(guest, "sh", "-c", "echo $(id -u) $(id -g) $(id -G)", user=user)
    assert (how.value, out.decode().strip()) == (0, expected), err


@pytest.mark.parametrize("user", ["nobody-here", "user:no-group", "4294967295", "-1"])
async def test_unknown_user_is_refused(guest: AgentClient, user: str) -> None:
    how, out, _ = await run(guest, "id", user=user)
    assert (how.kind, how.shell_status, out) == ("refused", 125, b"")


async def test_working_directory(guest: AgentClient) -> None:
    assert (await run(guest, "pwd"))[1] == b"/root\n"
    assert (await run(guest, "pwd", user="user"))[1] == b"/home\n"
    assert (await run(guest, "pwd", cwd="/etc"))[1] == b"/etc\n"
    how, _, _ = await run(guest, "pwd", cwd="/absent")
    assert how.kind == "refused"
    assert "/absent" in how.message


# -- ends of whole trees --------------------------------------------------------------------------

ESCAPE = "setsid sh -c 'sh -c \"sleep {0}\" & sleep {0}' >/dev/null 2>&1 & sleep {0}"


async def test_timeout_kills_setsid_and_double_forks(guest: AgentClient) -> None:
    began = time.monotonic()
    how, _ = await shell(guest, ESCAPE.format(7001), timeout_ms=1000)
    assert (how.kind, how.shell_status) == ("timeout", 124)
    assert 0.9 < time.monotonic() - began < 5
    assert await gone(guest, "sleep 7001")


async def test_output_before_a_timeout_is_delivered(guest: AgentClient) -> None:
    how, out = await shell(guest, "echo early; sleep 60", timeout_ms=1000)
    assert (how.kind, out) == ("timeout", "early\n")


async def test_kill_ends_the_whole_tree(guest: AgentClient) -> None:
    process = await guest.exec(ExecRequest((b"sh", b"-c", ESCAPE.format(7002).encode()), {}))
    await asyncio.sleep(0.5)
    assert await alive(guest, "sleep 7002")
    await process.kill(9)
    async with asyncio.timeout(10):
        how, _, _ = await process.collect()
    assert how.shell_status == 137
    assert await gone(guest, "sleep 7002")


async def test_other_signals_reach_the_command(guest: AgentClient) -> None:
    script = b"trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    process = await guest.exec(ExecRequest((b"sh", b"-c", script), {}))
    async with asyncio.timeout(10):
        assert await process.read() == ("stdout", b"ready\n")
        await process.kill(15)
        how, out, _ = await process.collect()
    assert (how.kind, how.value, out) == ("exit", 3, b"caught\n")


async def test_abandoned_command_is_killed(guest: AgentClient) -> None:
    process = await guest.exec(ExecRequest((b"sh", b"-c", ESCAPE.format(7003).encode()), {}))
    await asyncio.sleep(0.5)
    await process.abandon()
    async with asyncio.timeout(10):
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


async def test_what_a_command_leaves_running_stays(vm: bare.BareVm, guest: AgentClient) -> None:
    began = time.monotonic()
    # It holds stdout, and writes to it later: neither delays the end nor kills it.
    script = "(while :; do echo x; sleep 0.1; done; : marked-7005) & echo started"
    how, out = await shell(guest, script)
    assert (how.kind, how.value) == ("exit", 0)
    assert out.startswith(("started", "x"))
    assert time.monotonic() - began < 5
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


async def test_slow_reader_of_large_output_blocks_nobody(guest: AgentClient) -> None:
    piece_size, times = 10 << 20, 10
    size = piece_size * times
    # Made once and repeated: under emulation `yes` is slower than the channel.
    for word in ("out", "err"):
        await shell(guest, f"yes {word} | head -c {piece_size} > /tmp/{word}")
    repeat = " ".join(map(str, range(times)))
    script = (
        f"(for i in {repeat}; do cat /tmp/out; done) &"
        f" (for i in {repeat}; do cat /tmp/err; done >&2) & wait; rm /tmp/out /tmp/err"
    )
    process = await guest.exec(ExecRequest((b"sh", b"-c", script.encode()), {}))
    hashes = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
    sizes = {"stdout": 0, "stderr": 0}
    await asyncio.sleep(1)
    slowest = 0.0
    for _ in range(3):
        began = time.monotonic()
        assert (await run(guest, "echo", "ok"))[1] == b"ok\n"
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1
    reads = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with asyncio.timeout(110):
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
    began = time.monotonic()
    assert (await run(guest, "echo", "ok"))[1] == b"ok\n"
    assert time.monotonic() - began < 1
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
    assert await guest.ping(5) < 5
    assert (await run(guest, "echo", "ok"))[1] == b"ok\n"


async def test_workload_that_reboots_ends_the_workloads_not_the_guest(guest: AgentClient) -> None:
    await run(guest, "reboot", "-f")
    assert await guest.ping(5) < 5
    assert await works_again(guest)


async def test_fork_bomb_does_not_stop_the_agent(guest: AgentClient) -> None:
    how, _ = await shell(guest, "f() { f | f & }; f; sleep 30", timeout_ms=2000)
    assert how.kind == "timeout"
    assert await guest.ping(10) < 10
    assert await works_again(guest)


async def test_memory_exhaustion_spares_the_agent(guest: AgentClient) -> None:
    how, _ = await shell(guest, "x=x; while :; do x=$x$x$x; done", timeout_ms=20000)
    assert how.kind in ("signal", "exit", "timeout")
    assert (await run(guest, "echo", "ok"))[1] == b"ok\n"


def test_console_shows_no_panic(vm: bare.BareVm) -> None:
    text = Path(vm.console).read_text(errors="replace")
    assert "Kernel panic" not in text
    assert "Oops" not in text
