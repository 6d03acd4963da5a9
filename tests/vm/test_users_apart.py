"""Ordinary users beside each other, with several homes each: nobody reaches what is another's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracebacks import no_traceback
from tests.vm.harness import TINY
from tests.vm.people import COUNT, PYTHON, Person, PersonsHome, groups_of, person, persons_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def someone() -> Iterator[Person]:
    with person() as made:
        yield made


@pytest.fixture(scope="module")
def other() -> Iterator[Person]:
    with person() as made:
        yield made


def uid_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("Uid:")[2].split()[0])


# -- two users, two homes

# Tries what no stranger may do to a VMM and its controller; prints what succeeded.
STRANGER = """
import ctypes, json, os, signal, socket, sys
pid, home, runtime, group = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
libc = ctypes.CDLL(None, use_errno=True)

def connect(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)

def read(path):
    with open(path, "rb") as file:
        file.read(1)

def move(path, who):
    with open(path, "w") as file:
        file.write(str(who))

def trace():
    if libc.ptrace(16, pid, 0, 0):  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")

def join(kind):
    descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    if libc.setns(descriptor, 0):
        raise OSError(ctypes.get_errno(), "setns")

tries = {
    "signal": lambda: os.kill(pid, 0),
    "trace": trace,
    "join its user namespace": lambda: join("user"),
    "read its memory": lambda: read(f"/proc/{pid}/mem"),
    "list its descriptors": lambda: os.listdir(f"/proc/{pid}/fd"),
    "see its root": lambda: os.listdir(f"/proc/{pid}/root/"),
    "list the home": lambda: os.listdir(home),
    "connect to the controller": lambda: connect(f"{home}/box.sock"),
    "list the runtime folder": lambda: os.listdir(runtime),
    "connect to the VMM": lambda: connect(f"{runtime}/qmp.sock"),
    "raise a limit": lambda: move(f"{group}/pids.max", 1000),
    "join its group": lambda: move(f"{group}/cgroup.procs", os.getpid()),
    "take it into the own group": lambda: move(f"{sys.argv[5]}/cgroup.procs", pid),
    "make a group in it": lambda: os.mkdir(f"{group}/x"),
}
done = []
for name in sys.argv[6:] or tries:
    try:
        tries[name]()
        done.append(name)
    except OSError:
        pass
print(json.dumps(done))
"""


def reached(by: list[str], home: PersonsHome, name: str, own: Path, *only: str) -> list[str]:
    """What somebody can do to a sandbox, of what is tried above; all of it, or `only` this."""
    group = next(path for path in home.cgroups(name) if (path / "pids.max").exists())
    told = [str(home.pid(name)), str(home.path), str(home.runtime / name), str(group), str(own)]
    done = subprocess.run(
        [*by, PYTHON, "-I", "-c", STRANGER, *told, *only],
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.long  # four boots
def test_users_and_homes_are_apart(someone: Person, other: Person) -> None:
    """The same names everywhere; a home of the other user's and a second one of the first."""
    with (
        persons_home(someone) as first,
        persons_home(someone) as second,
        persons_home(other) as third,
    ):
        homes = (first, second, third)
        for home in homes:
            home.start()
            home.put("oak")
        for home in homes:
            home.ready("oak")
        pids = [home.pid("oak") for home in homes]
        top, others = (who.first + COUNT - 1 for who in (someone, other))
        assert [uid_of(pid) for pid in pids] == [top, top - 1, others]
        for home in homes:
            assert len(home.vmms()) == 1
        own = next(path for path in groups_of(other) if (path / "pids.max").exists())
        assert reached(other.become(), first, "oak", own) == []
        harmless = ("signal", "list its descriptors", "list the home", "connect to the VMM")
        assert reached([], first, "oak", own, *harmless) == list(harmless)  # it can be done
        # A standard VMM of the same user is its UID, and no friend of the others either.
        second.put("ash", TINY + "isolation: standard\n")
        second.ready("ash")
        jailed = ["setpriv", f"--reuid={top - 1}", f"--regid={top - 1}"]
        assert reached([*jailed, "--clear-groups"], first, "oak", own) == []
        first.remove("oak")
        first.nothing_left("oak")
        for home, pid in zip(homes[1:], pids[1:], strict=True):
            assert home.pid("oak") == pid
            assert home.run("oak", "echo", "well").stdout == b"well\n"
        first.put("oak")
        first.ready("oak")
        assert uid_of(first.pid("oak")) not in {uid_of(pid) for pid in pids[1:]}


# -- where identities are kept


@pytest.mark.parametrize("place", ["/nonexistent", "/root/state", "/etc/passwd"])
def test_without_a_place_for_claims_nothing_starts_and_it_is_named(
    someone: Person, place: str
) -> None:
    with persons_home(someone) as home:
        home.env |= {"XDG_STATE_HOME": place}
        home.put("oak")
        done = home.once()
        said = done.stdout + done.stderr
        assert done.returncode != 0
        assert f"identities cannot be kept in {place}/box".encode() in said
        no_traceback(said)
        assert home.vmms() == []
        checks = json.loads(home.box("doctor", "-o", "json", check=False).stdout)["checks"]
        [found] = [each for each in checks if each["name"] == "subordinate ids"]
        assert found["state"] == "fail"
        assert "XDG_STATE_HOME" in found["fix"]
