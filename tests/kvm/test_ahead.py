"""What a session starts ahead is shown, and is gone with the session, however that ends."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kvm.ahead import Ahead
from tests.lint.tree import ROOT
from tests.vm.harness import until

# A session with a command at work ahead, which holds a machine that does nothing.
SESSION = """
import sys, time
from tests.kvm.ahead import Ahead
Ahead([sys.executable, "-c", sys.argv[1], sys.argv[2]])
time.sleep(100)
"""
WORK = """
import signal, sys
from tests.kvm.ahead import leave
from tests.kvm.lab import follow
signal.signal(signal.SIGTERM, leave)
quiet = ["-M", "none", "-display", "none", "-nodefaults", "-S"]
follow(["qemu-system-x86_64", *quiet, "-name", sys.argv[1]], 100)
"""


def those_with(word: str, program: str = "") -> list[int]:
    """Processes with this among their arguments that run this program."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if word in arguments and program in arguments[0]:
                    found.append(int(entry.name))
    return found


def is_group(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def shell(script: str) -> list[str]:
    return ["sh", "-c", script, "sh"]


@pytest.fixture
def said() -> Iterator[list[str]]:
    yield []


def test_all_that_is_said_is_shown_and_what_is_left_is_the_result(said: list[str]) -> None:
    begun = Ahead(shell("echo early; sleep 0.5; echo late; echo left >$1; echo last >&2"))
    try:
        assert begun.result(60, said.append) == "left\n"
        assert "".join(said) == "early\nlate\nlast\n"
    finally:
        begun.end()


def test_what_leaves_nothing_or_does_not_end_is_a_failure(said: list[str]) -> None:
    for script, complaint in (("echo done", "without a result"), ("sleep 100", "no end within")):
        begun = Ahead(shell(script))
        try:
            with pytest.raises(AssertionError, match=complaint):
                begun.result(1, said.append)
        finally:
            begun.end()


@pytest.mark.parametrize("script", ["sleep $N & wait", "trap '' TERM; sleep $N; sleep $N"])
def test_its_end_takes_its_children_along(script: str) -> None:
    number = f"100.{secrets.randbelow(10**9):09}"
    begun = Ahead(shell(script.replace("$N", number)))
    until(lambda: those_with(number), 20, "it works")
    begun.end(patience=1)
    assert begun.process.returncode is not None
    until(lambda: not those_with(number), 20, "nothing is left")


@pytest.mark.parametrize("whom", ["session", "work"])
def test_a_killed_session_leaves_no_machine(whom: str, tmp_path: Path) -> None:
    mark = f"ahead-{secrets.token_hex(8)}"
    argv = [sys.executable, "-c", SESSION, WORK, mark]
    session = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        until(lambda: those_with(mark, "qemu"), 30, "the machine is there")
        (work,) = (pid for pid in those_with(mark, "python") if pid != session.pid)
        os.kill(session.pid if whom == "session" else work, signal.SIGKILL)
        until(lambda: not those_with(mark, "qemu"), 20, "no machine")
    finally:
        session.kill()
        session.wait()
    until(lambda: not those_with(mark), 20, "nothing is left")


def pytest_session(results: Path, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    picked = ["tests/kvm/test_lab.py", "tests/unit/test_dev.py", "-k", "strict-as-root or test_dev"]
    env = {**os.environ, "BOX_TEST_RESULTS": str(results)}  # not those of the session around it
    return subprocess.Popen([*argv, *picked], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def test_tests_that_do_not_mind_come_before_the_lab(tmp_path: Path) -> None:
    said, _ = pytest_session(tmp_path, "--collect-only", "-q").communicate(timeout=100)
    files = [line.partition("::")[0] for line in said.splitlines() if "::" in line]
    assert files[0] == "tests/unit/test_dev.py"
    assert files.index("tests/kvm/test_lab.py") == len(files) - 1


@pytest.mark.needs_lab
def test_an_interrupted_session_leaves_no_lab(tmp_path: Path) -> None:
    session = pytest_session(tmp_path)
    try:

        def begun() -> list[int]:
            assert session.poll() is None, session.communicate()
            children = Path(f"/proc/{session.pid}/task/{session.pid}/children").read_text()
            return [pid for pid in those_with("tests.kvm.ahead") if str(pid) in children.split()]

        (work,) = until(begun, 60, "the lab is begun")
        session.send_signal(signal.SIGINT)
        said, _ = session.communicate(timeout=60)
        assert "KeyboardInterrupt" in said
        # A group is there as long as nobody has asked how those in it ended.
        until(lambda: not is_group(work), 20, "nothing of it is left")
    finally:
        session.kill()
        session.wait()
