"""Commands: large output, exact bytes, long arguments, time limits, and VMs that die meanwhile."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

import pytest

from tests.vm.cases import (
    BYSTANDER,
    CaseHome,
    bystander,
    case_home,
    kill_vmm,
    replaced,
    undisturbed,
)
from tests.vm.harness import BOX, ROOT, TINY, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300)]

MIB = 1 << 20
ROUNDS = 100  # of 1 MiB on each stream
FLAT_KIB = 24 * 1024


@pytest.fixture(scope="module")
def home() -> Iterator[CaseHome]:
    with case_home() as home, bystander(home):
        home.put("oak")
        home.ready("oak")
        yield home


@pytest.fixture(autouse=True)
def in_every_case(home: CaseHome) -> Iterator[None]:
    with undisturbed(home, BYSTANDER):
        yield
    assert home.run("oak", "echo", "well").stdout == b"well\n"


def popen(home: CaseHome, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*BOX, *arguments],
        env=home.env,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def seconds_of_echo(home: CaseHome, name: str = "oak") -> float:
    began = time.monotonic()
    assert home.run(name, "echo", "ok").stdout == b"ok\n"
    return time.monotonic() - began


def in_time(echoes: list[float]) -> None:
    """Under 1 s on a host that does nothing else; a command that waits for another never is."""
    assert len(echoes) > 4
    assert sorted(echoes)[len(echoes) // 2] < 1.0, echoes
    assert max(echoes) < 4.0, echoes


def guest_has(home: CaseHome, word: str) -> str:
    # the brackets keep the search from finding itself
    pattern = f"[{word[0]}]{word[1:]}"
    found = home.run("oak", "sh", "-c", f"ps -o pid,ppid,args | grep '{pattern}' || true")
    return found.stdout.decode()


class Api:
    """One exec over the socket, as a client of one's own would do it."""

    def __init__(self, home: CaseHome, name: str, **body: Any) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(home.path / "box.sock"))
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/sandboxes/{name}/exec HTTP/1.1\r\nHost: box\r\nConnection: Upgrade\r\n"
            f"Upgrade: box-exec/1\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(head.encode() + data)

    def answer(self) -> bytes:
        """A whole refusal, or everything until the controller closes the stream."""
        found = b""
        with contextlib.suppress(ConnectionResetError):  # refused before all of it was read
            while piece := self.socket.recv(65536):
                found += piece
                if found.startswith(b"HTTP/1.1 4") and found.endswith(b"}\n"):
                    break
        self.socket.close()
        return found

    def output(self) -> tuple[bytes, dict[str, Any]]:
        """Standard output and the last word, an exit or an error."""
        head, _, rest = self.answer().partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            error: dict[str, Any] = json.loads(rest)["error"]
            return b"", error
        out, last = b"", {}
        while rest:
            kind, length = rest[0], int.from_bytes(rest[1:5], "big")
            payload, rest = rest[5 : 5 + length], rest[5 + length :]
            if kind == 3:
                out += payload
            elif kind in (5, 6):
                last = json.loads(payload)
        return out, last


# -- E1 ------------------------------------------------------------------------------------------


@pytest.mark.quiet
def test_e1_200_mb_on_both_streams_to_a_slow_reader_block_nobody(home: CaseHome) -> None:
    blob = os.urandom(MIB)
    home.box("exec", "oak", "-i", "--", "sh", "-c", "cat > /tmp/blob", data=blob)
    expected = {}
    for stream in ("out", "err"):
        digest = hashlib.sha256()
        for number in range(ROUNDS):
            digest.update(f"{stream} {number}\n".encode() + blob)
        expected[stream] = digest.hexdigest()
    before = home.resident_kib()
    script = (
        f"i=0; while [ $i -lt {ROUNDS} ]; do echo out $i; cat /tmp/blob;"
        " { echo err $i; cat /tmp/blob; } >&2; i=$((i+1)); done"
    )
    client = popen(home, "exec", "oak", "--", "sh", "-c", script)
    found: dict[str, str] = {}
    assert client.stdout is not None
    assert client.stderr is not None
    readers = [
        threading.Thread(target=read_slowly, args=(client.stdout, found, "out")),
        threading.Thread(target=read_slowly, args=(client.stderr, found, "err")),
    ]
    echoes, highest = [], before
    for reader in readers:
        reader.start()
    while client.poll() is None:
        echoes.append(seconds_of_echo(home))
        highest = max(highest, home.resident_kib())
        time.sleep(0.3)
    for reader in readers:
        reader.join()
    assert client.returncode == 0
    assert found == expected
    in_time(echoes)
    assert highest - before < FLAT_KIB


def read_slowly(pipe: IO[bytes], found: dict[str, str], stream: str) -> None:
    time.sleep(2)  # everything between here and the guest is full by then
    digest = hashlib.sha256()
    pieces = 0
    while piece := os.read(pipe.fileno(), 65536):
        digest.update(piece)
        pieces += 1
        if pieces % 64 == 0:
            time.sleep(0.02)
    found[stream] = digest.hexdigest()


@pytest.mark.quiet
def test_e1_a_client_that_never_reads_costs_nothing_and_its_command_dies_with_it(
    home: CaseHome,
) -> None:
    before = home.resident_kib()
    script = "while :; do cat /tmp/blob /dev/zero; cat /dev/zero >&2; done # never-read"
    clients = [Api(home, "oak", argv=["sh", "-c", script]) for _ in range(3)]
    until(lambda: guest_has(home, "never-read"), 20, "it runs")
    time.sleep(2)
    in_time([seconds_of_echo(home) for _ in range(5)])
    assert home.resident_kib() - before < FLAT_KIB
    for client in clients:
        client.socket.close()
    until(lambda: not guest_has(home, "never-read"), 20, "the commands died with their clients")


# -- E3 ------------------------------------------------------------------------------------------


def test_e3_bytes_are_exact_and_in_the_order_of_their_stream(home: CaseHome) -> None:
    script = (
        r"printf '\377\000\r\n\201'; sleep 0.2; printf '\303'; sleep 0.2; printf '\251';"
        r"printf '\033]0;title\007' >&2"
    )
    done = home.run("oak", "sh", "-c", script)
    assert done.stdout == b"\xff\x00\r\n\x81\xc3\xa9"
    assert done.stderr == b"\x1b]0;title\x07"


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (["sh", "-c", "exit 7"], 7, b""),
        (["sh", "-c", "exit 255"], 255, b""),
        (["sh", "-c", "kill -9 $$"], 137, b""),
        (["sh", "-c", "kill -SEGV $$"], 139, b""),
        (["/no/such/program"], 127, b"box: "),
        (["/etc/passwd"], 126, b"box: "),
        (["/tmp"], 126, b"box: "),
    ],
)
def test_e3_statuses(home: CaseHome, command: list[str], status: int, said: bytes) -> None:
    done = home.run("oak", *command, check=False)
    assert (done.returncode, done.stdout) == (status, b"")
    assert done.stderr.startswith(said)


def test_e3_a_vm_that_dies_meanwhile_is_an_error_of_its_own(home: CaseHome) -> None:
    home.ready("oak")
    script = "echo begun; trap '' TERM; sleep 120"
    client = popen(home, "exec", "oak", "--", "sh", "-c", script)
    assert client.stdout is not None
    assert client.stdout.read(6) == b"begun\n"
    former = kill_vmm(home, "oak")
    out, err = client.communicate(timeout=60)
    assert (client.returncode, out) == (125, b"")
    assert re.match(rb"box: .*(stopped|broke).*command ran", err), err
    assert b"box describe" in err
    replaced(home, "oak", former)
    home.ready("oak")


def test_e3_a_killed_client_takes_its_command_with_it(home: CaseHome) -> None:
    client = popen(
        home, "exec", "oak", "--", "sh", "-c", "setsid sleep 7100 & echo begun; sleep 7101"
    )
    assert client.stdout is not None
    assert client.stdout.read(6) == b"begun\n"
    until(lambda: guest_has(home, "sleep 7100"), 20, "it runs in a session of its own")
    client.kill()
    client.communicate(timeout=60)
    until(lambda: not guest_has(home, "sleep 710"), 20, "the command died with its client")


# -- E4 ------------------------------------------------------------------------------------------

AWKWARD = ["", " ", "\n", "a\nb\n", "'", '"', "$(id)", "`id`", "$HOME", "*", "-n", "--", "\\", "é"]
SHOW = ["sh", "-c", 'for a; do printf "%s\\0" "$a"; done', "show"]


def test_e4_awkward_arguments_arrive_as_they_are_without_a_shell(home: CaseHome) -> None:
    done = home.run("oak", *SHOW, *AWKWARD)
    assert done.stdout.split(b"\0")[:-1] == [word.encode() for word in AWKWARD]
    raw = b"\xff\xfe \x01"
    done = home.run("oak", *SHOW, os.fsdecode(raw))
    assert done.stdout == raw + b"\0"
    assert home.run("oak", "echo", "$(id)", "a  b").stdout == b"$(id) a  b\n"


def test_e4_twenty_thousand_arguments_arrive(home: CaseHome) -> None:
    words = [f"argument number {number} '$(id)'" for number in range(20_000)]
    done = home.run("oak", *SHOW, *words)
    assert done.stdout.split(b"\0")[:-1] == [word.encode() for word in words]


@pytest.mark.parametrize("route", ["flags", "api"])
def test_e4_a_large_environment_arrives(home: CaseHome, route: str) -> None:
    """One string may have 128 KiB in Linux (execve(2)); the guest takes 2 MB of them and more."""
    count = 21 if route == "api" else 14  # this host takes 2 MiB for the client's own command line
    env = {f"V{number:02}": chr(97 + number) * 100_000 for number in range(count)}
    script = f"for v in $(seq -w 0 {count - 1}); do eval echo -n \\$V$v; done | sha256sum"
    expected = hashlib.sha256("".join(env.values()).encode()).hexdigest()
    if route == "api":
        out, last = Api(home, "oak", argv=["sh", "-c", script], env=env).output()
        assert last.get("status") == 0, last
    else:
        flags = [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
        out = home.box("exec", "oak", *flags, "--", "sh", "-c", script).stdout
    assert out.split()[0].decode() == expected


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("one long string", {"argv": ["true", "x" * 200_000]}),
        ("more than a request may hold", {"argv": ["true", *["x" * 100_000] * 50]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_e4_too_long_is_a_clear_error_and_the_agent_lives(
    home: CaseHome, what: str, body: dict[str, Any]
) -> None:
    out, last = Api(home, "oak", **body).output()
    assert out == b""
    assert last.get("status") != 0, last
    assert re.search(r"too (long|large|big|many)|limit|over \d+", str(last.get("message"))), last
    in_time([seconds_of_echo(home) for _ in range(5)])


def test_e4_a_value_with_a_zero_byte_is_refused(home: CaseHome) -> None:
    value = base64.b64encode(b"a\0b").decode()
    _, last = Api(home, "oak", argv_b64=[value]).output()
    assert last["code"] == "bad_request"
    assert "zero byte" in last["message"]


# -- timeout_seconds and restart: never ----------------------------------------------------------


def test_timeout_seconds_ends_the_whole_tree(home: CaseHome) -> None:
    home.ready("oak")
    pid, generation = home.pid("oak"), home.generation("oak")
    home.put("oak", TINY + "timeout_seconds: 2\n")
    until(lambda: home.generation("oak") == generation + 1, 20, "the limit is taken")
    script = (
        "trap '' TERM INT HUP; setsid sleep 7001 & (setsid sh -c 'sleep 7002 & sleep 7003' &)"
        "; nohup sleep 7004 & echo begun; sleep 7005"
    )
    began = time.monotonic()
    done = home.run("oak", "sh", "-c", script, check=False)
    took = time.monotonic() - began
    assert (done.returncode, done.stdout) == (124, b"begun\n")
    # By the guest's clock, which an emulated CPU on a busy host lets run faster than the host's.
    # None of its sleeps is shorter than an hour: a time limit that misses one would show.
    assert 1 < took < 60
    home.put("oak")
    until(lambda: home.generation("oak") == generation + 2, 20, "the limit is gone")
    until(lambda: not guest_has(home, "sleep 700"), 20, "the whole tree is gone")
    assert home.pid("oak") == pid
    flag = home.box("exec", "oak", "--timeout", "300ms", "--", "sleep", "9", check=False)
    assert flag.returncode == 124
    assert home.run("oak", "sleep", "2.5").returncode == 0


def test_restart_never_leaves_a_dead_vm_dead_until_its_boxfile_changes(home: CaseHome) -> None:
    home.put("ash", TINY + "restart: never\n")
    home.ready("ash")
    home.run("ash", "sh", "-c", "echo kept > /data/file; sync")
    kill_vmm(home, "ash")
    until(lambda: home.condition("ash", "Ready") == ("False", "VmmExited"), 20, "reported")
    assert "restart: never" in home.message("ash", "Ready")
    home.passes(3)
    assert len(home.events("ash", "exited")) == 1
    assert home.vmms("ash") == []
    until(lambda: not home.cgroups("ash") and not (home.runtime / "ash").exists(), 20, "cleaned")
    assert home.run("ash", "true", check=False).returncode == 125
    home.put("ash", TINY + "restart: never\nlabels: {again: 'yes'}\n")
    home.ready("ash")
    assert home.run("ash", "cat", "/data/file").stdout == b"kept\n"
    home.remove("ash")
    home.nothing_left("ash")
