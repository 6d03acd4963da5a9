"""What every verb owes its user: help with an example, exit statuses, no traceback, no stray
colour.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controller.cli.parser import build
from tests.tracebacks import no_traceback
from tests.unit.cli.support import ARGV, box, environment, text

VERBS = [
    "controller",
    "data",
    "apply",
    "diff",
    "get",
    "describe",
    "drift",
    "events",
    "wait",
    "delete",
    "exec",
    "run",
    "logs",
    "verify",
    "doctor",
    "schema",
    "new",
    "prune",
    "build",
    "images",
    "snapshot",
    "snapshots",
    "restore",
    "reset",
    "fork",
    "version",
    "completion",
    "help",
]


def test_the_verbs_are_those_of_the_documentation() -> None:
    actions = build()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert sorted(actions) == sorted(VERBS)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_that_starts_with_box(tmp_path: Path, verb: str) -> None:
    done = box(tmp_path / "home", verb, "--help")
    assert done.returncode == 0
    examples = text(done).partition("examples:")[2]
    assert f"box {verb}" in examples


def test_without_a_verb_the_help_is_shown(tmp_path: Path) -> None:
    done = box(tmp_path / "home")
    assert (done.returncode, "a first sandbox" in text(done)) == (0, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("get", "--bogus"),
        ("get", "-o", "xml"),
        ("describe", "a", "b"),
        ("help", "bogus"),
        ("exec", "a", "uname", "-a"),
        ("get", "--watch", "-o", "json"),
        ("apply",),
        ("wait", "x"),
        ("logs", "x", "--tail", "many"),
        ("completion", "tcsh"),
        ("bo\x1b[2Jgus",),
        ("run", "x", "uname"),
        ("shell", "x"),
    ],
)
def test_usage_mistakes_are_exit_2_and_one_message(tmp_path: Path, arguments: tuple[str]) -> None:
    done = box(tmp_path / "home", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(b"box: ")
    assert b"\x1b" not in done.stderr
    assert len(text(done).splitlines()) <= 3


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("exec fern uname -a", "box exec fern -- uname -a"),
        ("exec fern sh -c 'a b' -u c", "box exec fern -- sh -c 'a b' -u c"),
        ("exec fern ls -- -l", "box exec fern -- ls -l"),
        ("exec fern --bogus", "box exec --help shows the form"),
        ("apply -f x --bogus", "box apply --help shows the form"),
        ("aply -f x", "did you mean box apply?"),
        ("help aply", "did you mean box apply?"),
        ("quux", "box --help shows the form"),
    ],
)
def test_words_that_fit_nowhere_are_answered_with_what_was_meant(
    tmp_path: Path, line: str, fix: str
) -> None:
    done = box(tmp_path / "home", *shlex.split(line))
    assert (done.returncode, done.stderr.decode().splitlines()[-1]) == (2, f"  fix: {fix}")


def test_many_mistakes_are_told_from_the_first_one_on(tmp_path: Path) -> None:
    (tmp_path / "much.yaml").write_text("".join(f"nonsense_{n}: x\n" for n in range(60)))
    lines = text(box(tmp_path / "home", "apply", "-f", "much.yaml")).splitlines()
    assert (lines[0], len(lines)) == ("box: nothing was done", 52)
    assert lines[1].startswith("  much.yaml:1:1: nonsense_0: ")
    assert lines[-1].endswith("and 10 more mistakes from here on")


def test_what_people_type_first_is_known(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert box(home, "--version").stdout == box(home, "version").stdout
    assert box(home, "help", "apply").stdout == box(home, "apply", "--help").stdout
    assert box(home, "help").stdout == box(home, "--help").stdout
    box(home, "schema", "-o", "s.json")
    assert (tmp_path / "s.json").exists()


def test_a_home_that_is_no_home_is_an_error_without_traceback(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file")
    for verb in (("get",), ("doctor",), ("exec", "x", "--", "true"), ("describe", "x")):
        assert box(home, *verb).returncode in (0, 1, 125)
        assert text(box(home, *verb))
    home.unlink()
    home.mkdir()
    (home / "instance").write_text("not hex at all\n")
    done = box(home, "get")
    assert (done.returncode, "instance" in text(done)) == (1, True)


def test_a_home_of_nobody_is_the_users_mistake(tmp_path: Path) -> None:
    for verb in (("get",), ("doctor",), ("describe", "x")):
        done = box(tmp_path / "home", *verb, BOX_HOME="~nobody-of-that-name/home")
        assert "mistake in box" not in text(done)
        assert "~nobody-of-that-name" in text(done)


def test_a_reader_that_leaves_is_no_traceback(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    child = subprocess.run(
        [*ARGV, "schema"], stdout=writer, stderr=subprocess.PIPE,
        env=environment(tmp_path / "home"), timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert (child.returncode, child.stderr) == (141, b"")


def test_ctrl_c_is_130_without_traceback(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [*ARGV, "get", "--watch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(tmp_path / "home"),
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (130, b"")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_missing_standard_descriptor_is_no_disaster(tmp_path: Path, closed: int) -> None:
    operator = "<&-" if closed == 0 else f"{closed}>&-"
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m controller.cli.main version {operator}'],
        capture_output=True, env=environment(tmp_path / "home"), timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    no_traceback(done.stderr)


def test_a_mistake_of_ours_is_one_message_and_125_for_exec(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['box', {verb!r}, 'x', '--', 'true']\n"
        "import controller.cli.{module} as it\n"
        "def broken(*_): raise ZeroDivisionError('boo')\n"
        "it.{function} = broken\n"
        "from controller.cli.main import main\n"
        "sys.exit(main())"
    )
    for verb, module, function, status in (
        ("exec", "execclient", "run", 125),
        ("get", "parser", "run", 1),
    ):
        code = script.format(verb=verb, module=module, function=function)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True,
            env=environment(tmp_path / "home"), timeout=60,
        )  # fmt: skip
        assert done.returncode == status
        assert b"a mistake in box: ZeroDivisionError: boo" in done.stderr
        text(done)


def test_colours_only_on_a_terminal_and_not_with_no_color(tmp_path: Path) -> None:
    assert b"\x1b" not in box(tmp_path / "home", "doctor").stdout
    assert b"\x1b[3" in on_terminal(tmp_path / "home", "doctor")
    assert b"\x1b" not in on_terminal(tmp_path / "home", "doctor", NO_COLOR="1")
    assert b"\x1b" not in on_terminal(tmp_path / "home", "doctor", TERM="dumb")


def on_terminal(home: Path, *arguments: str, **env: str) -> bytes:
    """What the command shows on a terminal of its own."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*ARGV, *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
        env=environment(home, **{"TERM": "xterm", **env}),
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO: the other side has closed
            break
        shown += piece
    os.close(ours)
    child.wait(60)
    return shown


@pytest.mark.parametrize(
    "arguments", [("apply", "-f", "/nowhere/x.yaml"), ("schema", "--output", "/nowhere/x")]
)
def test_a_file_that_is_not_there_is_named_with_a_fix(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = box(tmp_path / "home", *arguments)
    assert done.returncode == 1
    assert text(done).startswith("box: /nowhere/x")
    assert "No such file or directory" in text(done) and "\n  fix: " in text(done)


def test_schema_is_the_parsers_own(tmp_path: Path) -> None:
    from specs.parse import boxfile_schema

    assert json.loads(box(tmp_path / "home", "schema").stdout) == boxfile_schema()
    done = box(tmp_path / "home", "schema", "--output", "s.json")
    assert json.loads((tmp_path / "s.json").read_text()) == boxfile_schema()
    assert b"yaml-language-server" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_code_for_the_shell(tmp_path: Path, shell: str) -> None:
    done = box(tmp_path / "home", "completion", shell)
    assert done.returncode == 0
    assert b"box" in done.stdout


def complete(home: Path, line: str) -> list[str]:
    """What argcomplete's shell code would offer after this line."""
    reader, writer = os.pipe()
    script = f'exec 8>&{writer} 9>/dev/null; exec "{sys.executable}" -m controller.cli.main'
    subprocess.run(
        ["bash", "-c", script], pass_fds=[writer], timeout=60, check=False,
        env=environment(home, _ARGCOMPLETE="1", COMP_LINE=line, COMP_POINT=str(len(line)),
                        _ARGCOMPLETE_IFS="\n", _ARGCOMPLETE_SHELL="bash", COMP_TYPE="9"),
    )  # fmt: skip
    os.close(writer)
    with os.fdopen(reader) as answer:
        return [word.strip() for word in answer.read().split("\n")]


def test_completion_offers_verbs_options_and_names(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "boxes").mkdir(parents=True)
    (home / "instance").write_text("0123456789ab\n")
    (home / "boxes" / "fern.yaml").write_text("cpus: 1\n")
    assert "describe" in complete(home, "box des")
    assert "--dry-run" in complete(home, "box apply --d")
    assert "fern" in complete(home, "box describe f")
    assert "fern" in complete(home, "box exec f")
    assert "Ready" in complete(home, "box wait fern --for ")
    assert "hello" in complete(home, "box new moss --from ")
    assert "fern" not in complete(home, "box exec fern -- f")
