"""Commands in a real guest: what arrives, what comes back. One VM for the module."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from agent.client import AgentClient, ExecRequest
from specs.errors import UsageError
from tests.conftest import Evidence
from tests.vm import bare
from tests.vm.agent_vm import booted, run


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory, evidence: Evidence) -> Iterator[bare.BareVm]:
    with booted(tmp_path_factory.mktemp("agent"), evidence, "agent-commands") as machine:
        yield machine


@pytest.fixture
async def guest(vm: bare.BareVm) -> AsyncIterator[AgentClient]:
    client = await vm.connect()
    yield client
    await client.close()


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
