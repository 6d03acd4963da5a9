"""Where an ordinary user's control groups of version 2 begin: a scope of the user's systemd, or a
subtree that somebody gave him.

The systemd here is a real one, `systemd --user` with its D-Bus, in a mount namespace in which only
the v2 tree is mounted, as on a host of today. What cannot be had without a systemd as PID 1 is its
help when the asking process comes from another subtree, such as a login session.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reconcilers.confinement.cgrouptree import top_tree
from tests.vm.harness import until
from tests.vm.people import PYTHON, Person, held, person, remove_groups

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(120)]

SYSTEMD = Path("/usr/lib/systemd/systemd")
NEEDED = (SYSTEMD, Path("/usr/bin/busctl"), Path("/usr/lib/systemd/user/dbus.socket"))
FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")

# Settles, says where it is then, and waits until its standard input is closed.
ASK = """
import json, os, sys, time
from reconcilers.confinement import handed, userscope
from reconcilers.confinement.cgrouptree import CgroupTree
from specs.errors import ConfinementError
top, began, said, fix, child = sys.argv[1], time.monotonic(), "", "", ""
try:
    userscope.settle(CgroupTree({}, top))
except ConfinementError as problem:
    said, fix = problem.message, problem.fix
base, obstacle = handed.delegated(top)
if obstacle is None:
    group = os.path.join(top, base, "box", str(os.getpid()))
    os.makedirs(group)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    with open(os.path.join(group, "cgroup.procs"), "w") as file:
        file.write(str(child))
    with open(f"/proc/{child}/cgroup") as file:
        found = [line[3:].strip() for line in file if line.startswith("0::")]
    child = os.path.relpath(found[0], "/" + base)
print(json.dumps({"said": said, "fix": fix, "group": handed.own_group(), "base": base,
                  "child": child, "seconds": time.monotonic() - began}), flush=True)
sys.stdin.read()
os.kill(0, 9)
"""


@pytest.fixture(scope="module")
def unified() -> Path:
    where = top_tree().unified
    if not where:
        pytest.skip("no cgroup v2 tree is mounted")
    return Path(where)


@pytest.fixture(scope="module")
def someone() -> Iterator[Person]:
    with person(groups=False) as made:
        yield made


@pytest.fixture
def top(unified: Path, someone: Person) -> Iterator[Path]:
    """A group of root's, for what a test gives to the user; with all below it gone afterwards."""
    made = unified / f"boxtest-{someone.uid}"
    made.mkdir()
    try:
        yield made
    finally:
        until(lambda: not held(made), 20, f"processes {held(made)} have ended")
        remove_groups(made)


def given(group: Path, someone: Person) -> Path:
    """A delegated group, as cgroups(7) says it is done."""
    group.mkdir()
    for path in (group, *(group / name for name in FILES)):
        os.chown(path, someone.uid, someone.gid)
    return group


@dataclass
class Asker:
    process: subprocess.Popen[bytes]
    told: dict[str, Any]


@contextlib.contextmanager
def asking(
    someone: Person, top: Path, inside: Path, runtime: str = "", prefix: Sequence[str] = ()
) -> Iterator[Asker]:
    """A process of the user's in the group `inside` that has settled; it ends with the context."""
    environment = someone.environment(someone.folder) | {"XDG_RUNTIME_DIR": runtime}
    script = 'echo $$ > "$1"; shift; exec "$@"'
    shell = ["sh", "-c", script, "sh", str(inside / "cgroup.procs")]
    argv = [*shell, *prefix, PYTHON, "-c", ASK, str(top)]
    process = subprocess.Popen(
        argv,
        env=environment,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.wait(20)
        yield Asker(process, json.loads(line))
    finally:
        process.stdin.close()
        process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


# -- any subtree


def test_a_controller_at_the_top_of_its_subtree_makes_room_below(
    someone: Person, unified: Path, top: Path
) -> None:
    mine = given(top / "mine", someone)
    with asking(someone, unified, mine, prefix=someone.become()) as asker:
        assert asker.told["said"] == ""
        assert asker.told["base"] == f"{top.name}/mine"
        assert asker.told["group"] == f"{top.name}/mine/box-controller"
        assert asker.told["child"] == f"box/{asker.process.pid}"
        assert (mine / "cgroup.procs").read_text() == ""


def test_another_process_at_the_top_is_named_and_left_alone(
    someone: Person, unified: Path, top: Path
) -> None:
    mine = given(top / "mine", someone)
    other = subprocess.Popen(["sleep", "60"])
    try:
        (mine / "cgroup.procs").write_text(str(other.pid))
        with asking(someone, unified, mine, prefix=someone.become()) as asker:
            assert f"holds other processes ({other.pid})" in asker.told["said"]
            assert "in a group of its own" in asker.told["fix"]
            assert other.pid in map(int, (mine / "cgroup.procs").read_text().split())
    finally:
        other.kill()
        other.wait()


# -- no systemd that helps


def test_without_a_bus_it_is_refused_with_what_to_do(
    someone: Person, unified: Path, top: Path
) -> None:
    folder = someone.folder / "foreign"  # the user's, with a socket of somebody else's
    folder.mkdir()
    os.chown(folder, someone.uid, someone.gid)
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(str(folder / "bus"))
        bus.listen()
        for runtime in ("", str(folder), "relative"):
            prefix = someone.become()
            with asking(someone, unified, top, runtime=runtime, prefix=prefix) as asker:
                assert "in no subtree that was delegated" in asker.told["said"]
                assert "there is no D-Bus of a systemd of this user" in asker.told["said"]
                assert asker.told["fix"]
                assert asker.told["group"] == top.name


def test_a_bus_that_stays_silent_is_given_up(someone: Person, unified: Path, top: Path) -> None:
    folder = someone.folder / "silent"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(str(folder / "bus"))
        bus.listen()
        for path in (folder, folder / "bus"):
            os.chown(path, someone.uid, someone.gid)
        prefix = someone.become()
        with asking(someone, unified, top, runtime=str(folder), prefix=prefix) as asker:
            assert "took longer than" in asker.told["said"]
            assert asker.told["seconds"] < 60
            assert asker.told["group"] == top.name


# -- a real one


@dataclass
class Session:
    """The systemd of the user, the group it has, and one that is no unit of it."""

    pid: int
    group: Path
    terminal: Path
    runtime: str
    prefix: Sequence[str]


@pytest.fixture
def session(someone: Person, unified: Path, top: Path) -> Iterator[Session]:
    if lacking := [str(path) for path in NEEDED if not path.exists()]:
        pytest.skip(f"no systemd with a D-Bus for users here: {', '.join(lacking)}")
    group = given(top / f"user@{someone.uid}.service", someone)
    terminal = given(group / "terminal", someone)
    runtime = someone.folder / f"run-{time.monotonic_ns()}"
    runtime.mkdir(mode=0o700)
    os.chown(runtime, someone.uid, someone.gid)
    script = (
        'echo $$ > "$1"; shift; mount -t cgroup2 cgroup2 /sys/fs/cgroup;'
        ' mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/system; exec "$@"'
    )
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]
    argv += [str(group / "cgroup.procs"), *someone.become(), str(SYSTEMD)]
    environment = someone.environment(someone.folder) | {"XDG_RUNTIME_DIR": str(runtime)}
    log = someone.folder / "systemd.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*argv, "--user", "--unit=basic.target"], env=environment, stdout=file, stderr=file
        )
    try:
        until((runtime / "bus").exists, 30, f"its bus is there; {log.read_text()}")
        enter = ["nsenter", f"--mount=/proc/{process.pid}/ns/mnt", *someone.become()]
        yield Session(process.pid, group, terminal, str(runtime), enter)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in held(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def scope(session: Session) -> Path:
    return session.group / "app.slice/box.scope"


def test_systemd_gives_a_scope_that_the_next_controller_joins(
    someone: Person, session: Session
) -> None:
    mounted = Path("/sys/fs/cgroup")
    name = str(scope(session)).partition(f"{session.group.parent.name}/")[2]
    name = f"{session.group.parent.name}/{name}"

    def another() -> contextlib.AbstractContextManager[Asker]:
        return asking(
            someone, mounted, session.terminal, runtime=session.runtime, prefix=session.prefix
        )

    with another() as first:
        assert first.told["said"] == ""
        assert first.told["base"] == name
        assert first.told["group"] == f"{name}/box-controller"
        with another() as second:
            assert second.told["said"] == ""
            assert second.told["group"] == f"{name}/box-controller"
            for asker in (first, second):
                assert asker.told["child"] == f"box/{asker.process.pid}"
        assert scope(session).exists()
    until(lambda: not scope(session).exists(), 20, "the scope ends with what is in it")


@pytest.mark.parametrize("delegate", ["yes", "no"])
def test_only_a_unit_that_is_delegated_is_used(
    someone: Person, session: Session, delegate: str
) -> None:
    unit = ["systemd-run", "--user", "--scope", "--quiet", "--unit=own"]
    prefix = [*session.prefix, *unit, "-p", f"Delegate={delegate}"]
    mounted = Path("/sys/fs/cgroup")
    with asking(
        someone, mounted, session.terminal, runtime=session.runtime, prefix=prefix
    ) as asker:
        assert asker.told["said"] == ""
        wanted = "own.scope" if delegate == "yes" else "box.scope"
        assert asker.told["base"].endswith(f"/app.slice/{wanted}")
        assert asker.told["group"] == f"{asker.told['base']}/box-controller"


def test_a_systemd_that_cannot_move_the_process_is_said_to_have_failed(
    someone: Person, session: Session, top: Path
) -> None:
    """From another subtree only the host's own systemd could do it, and here is none."""
    with asking(
        someone, Path("/sys/fs/cgroup"), top, runtime=session.runtime, prefix=session.prefix
    ) as asker:
        assert "did not move this process" in asker.told["said"]
        assert "loginctl enable-linger" in asker.told["fix"]
        assert asker.told["group"] == top.name
