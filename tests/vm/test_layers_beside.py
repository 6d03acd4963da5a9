"""What no live process can be given is not missed in the others either: an ordinary user's VMM, and
the helpers that stand beside a VMM. Each is found without one layer, and the whole VM is replaced.

Another controller started it: its launchers lack that layer for processes of that one kind
(sabotaged.py), and it ended before it could look. test_layers_replaced.py does the same for root's
VMM, by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vm import sabotaged
from tests.vm.harness import READY, TINY, Home, until
from tests.vm.jailed import BARE, SANDBOX_OPTIONS
from tests.vm.launchers import (
    AMBIENT,
    NO_CHROOT,
    NO_UTS_NAMESPACE,
    PASTA_PRIVILEGED,
    PASTA_UNFILTERED,
    PRELUDE,
    PRIVILEGED_FILTER,
    SHARE_IN_PLACE,
    SHARE_PRIVILEGED,
)
from tests.vm.netlab import BOXFILE, built_lab
from tests.vm.people import Person, PersonsHome, person, persons_home
from tests.vm.shares import boxfile, owned
from tests.vm.usernet import UserNetHome, user_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

NAME = "elm"
# In the launcher, for one kind of process: by what it is to become. A VMM is started without a
# guest, whose files are not where some of the launchers here leave it.
ONE_KIND = """
real = launch.run
def run(document):
    if document.argv[0].endswith({ending!r}):
        exec({code!r}, globals())
        if {bare!r}:
            at = document.argv.index("-name")
            argv = (document.argv[0], *{bare!r}, *document.argv[at:at + 2])
            document = changed(document, argv=argv)
    real(document)
launch.run = run
"""
BINARY = {
    "vmm": "qemu-system-x86_64",
    "virtiofsd": "virtiofsd",
    "keeper": "sleep",
    "pasta": "pasta",
}
OWN_FILTER = ("-sandbox", SANDBOX_OPTIONS)


@dataclass(frozen=True)
class Lacking:
    """`code` runs in the launcher; `field` is what drift and event must name. `filtered`: a VMM's
    own filter is on, which sets no_new_privs by itself.
    """

    field: str
    code: str
    filtered: bool = True

    def program(self, role: str) -> str:
        bare: tuple[str, ...] = ()
        if role == "vmm":
            bare = (*BARE, *(OWN_FILTER if self.filtered else ()))
        return PRELUDE.format(ONE_KIND.format(ending=BINARY[role], code=self.code, bare=bare))


def namespace(kind: str) -> str:
    return f"jailroot.NAMESPACES &= ~syscalls.CLONE_NEW{kind}"


# An ordinary user's rights come from a user namespace, which comes with a mount namespace.
NO_MOUNTS = """
jailroot.leave_user_namespace = lambda: syscalls.unshare(syscalls.CLONE_NEWUSER)
jailroot.join_user_namespace = lambda users: syscalls.setns(users, syscalls.CLONE_NEWUSER)
jailroot.NAMESPACES &= ~syscalls.CLONE_NEWNS; without("binds", "propagation", "root", "pivot")
"""
MOUNTS = "mnt namespace"
A_USERS_GROUP = """
change = jailrights.change_identity
jailrights.change_identity = lambda d: change(changed(d, gid=0))
"""
# Braces stand for the label of a helper.
SHARED_BY_ALL = {
    "user": Lacking("identity.{}Uid", 'without("identity")'),
    "bounding set": Lacking("capabilities.{}CapBnd", 'without("bounding set")'),
    "pid namespace": Lacking("namespaces.{}pid", namespace("PID")),
    "ipc namespace": Lacking("namespaces.{}ipc", namespace("IPC")),
    "uts namespace": Lacking("namespaces.{}uts", NO_UTS_NAMESPACE),
    "cgroup namespace": Lacking("namespaces.{}cgroup", namespace("CGROUP")),
    MOUNTS: Lacking("namespaces.{}mnt", NO_MOUNTS),
    "root": Lacking("root.{}writable mounts", 'without("pivot")'),
    "capabilities": Lacking("capabilities.{}CapInh", AMBIENT),
    "no_new_privs": Lacking("no_new_privs.{}NoNewPrivs", PRIVILEGED_FILTER, filtered=False),
    "seccomp": Lacking("seccomp.{}Seccomp", "jailrights.load_seccomp = nothing", filtered=False),
    "net namespace": Lacking("namespaces.{}net", "syscalls.CLONE_NEWNET = 0"),
}  # fmt: skip
# The filters of virtiofsd and pasta come with no_new_privs, so for those they are made to believe
# that they have loaded them. pasta refuses to be root, so it has the user's group instead of the
# VMM's, and gives capabilities up by itself; its network is the host's. The keeper's is the one
# with the rules.
OWN = {
    # QEMU's own stays, so every thread has a filter: only their number tells.
    "vmm": {
        "our filter": Lacking("seccomp.filters", "jailrights.load_seccomp = nothing"),
        **SHARED_BY_ALL,
    },
    "virtiofsd": {
        **{k: v for k, v in SHARED_BY_ALL.items() if "namespace" in k and k != MOUNTS},
        MOUNTS: Lacking("namespaces.{}mnt", SHARE_IN_PLACE),
        "bounding set": SHARED_BY_ALL["bounding set"],
        "user": SHARED_BY_ALL["user"],
        "root": Lacking("root.{}mounts in its view", NO_CHROOT),
        "no_new_privs": Lacking("no_new_privs.{}NoNewPrivs", SHARE_PRIVILEGED),
        "seccomp": Lacking("seccomp.{}", "jailrights.load_seccomp = nothing"),
    },
    "keeper": {k: v for k, v in SHARED_BY_ALL.items() if k != "net namespace"},
    "pasta": {
        **{
            k: v for k, v in SHARED_BY_ALL.items()
            if k in ("bounding set", "root") or ("namespace" in k and k != "net namespace")
        },
        "group": Lacking("identity.{}Gid", A_USERS_GROUP),
        "no_new_privs": Lacking("no_new_privs.{}NoNewPrivs", PASTA_PRIVILEGED),
        "seccomp": Lacking("seccomp.{}filters", PASTA_UNFILTERED),
    },
}  # fmt: skip


def cases(role: str) -> pytest.MarkDecorator:
    """One of a VMM and one of a virtiofsd always, the others with `./dev test --all`: they take a
    start each, and all are found by the same readers.
    """
    found = OWN[role]
    always = 1 if role in ("vmm", "virtiofsd") else 0
    return pytest.mark.parametrize(
        "missing",
        [
            pytest.param(name, marks=[pytest.mark.long] if number >= always else [])
            for number, name in enumerate(found)
        ],
    )


def replaced(home: Home, role: str, missing: str, argv: Callable[[Path], list[str]]) -> None:
    """Start it without that layer, then a controller; it must end the VM and name the layer."""
    label = "" if role == "vmm" else f"{role} 0: "
    lacking = OWN[role][missing]
    field = lacking.field.format(label)
    home.stop()
    former = home.pid(NAME)
    with contextlib.suppress(ProcessLookupError):
        os.kill(former, 9)
    program = Path(tempfile.mkdtemp(prefix="boxtest-")) / "program.py"
    try:
        program.parent.chmod(0o755)
        program.write_text(lacking.program(role))
        with open(home.path / "controller.log", "ab") as log:
            done = subprocess.run(argv(program), env=home.env, stdout=log, stderr=log, timeout=150,
                                  cwd="/")  # fmt: skip
        assert done.returncode == 0, home.log()
    finally:
        shutil.rmtree(program.parent)
    made = home.pid(NAME)
    assert made != former and alive(made), home.log()
    before = len(events(home))
    culprit = home.helper(role) if isinstance(home, UserNetHome) else made
    theirs = missing == MOUNTS and isinstance(home, PersonsHome)
    with among_its_mounts(home, culprit) if theirs else contextlib.nullcontext():
        home.start()
    until(lambda: not alive(made), 30, f"the VMM whose {role} has no {missing} ends; {home.log()}")
    until(lambda: home.pid(NAME) not in (0, made), READY, f"another VMM; {home.log()}")
    told = events(home)[before:]
    assert [text for text in told if text.startswith(field)], told


@contextlib.contextmanager
def among_its_mounts(home: Home, pid: int) -> Iterator[None]:
    """A user's controller has its own here, for the files that are replaced (people.py). This one
    is put where the launch was: to be in the controller's namespace is what that VMM is blamed for.
    """
    assert isinstance(home, PersonsHome)
    former, there = home.before, os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    home.before = [*former, "nsenter", f"--mount=/proc/{os.getpid()}/fd/{there}"]
    try:
        yield
    finally:
        home.before = former
        os.close(there)


def put_back(home: Home, role: str) -> None:
    """What can change in a live helper is changed by hand, and mended without a restart."""
    home.ready(NAME)
    vmm, pid = home.pid(NAME), helper(home, role)
    proc = Path(f"/proc/{pid}")
    uid = (proc / "status").read_text().split("Uid:")[1].split()[0]
    before = (proc / "limits").read_text()
    soft, hard = before.split("Max open files")[1].split()[:2]
    lower = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "prlimit"]
    subprocess.run([*lower, f"--pid={pid}", f"--nofile={int(soft) // 2}:{hard}"], check=True)
    seen_and_mended(home, f"rlimits.{role} 0: nofile")
    assert (proc / "limits").read_text() == before
    groups = [each / "cgroup.procs" for each in home.cgroups(NAME)]
    procs = next(each for each in groups if str(pid) in each.read_text().split())
    with home.standing_still():  # else a timed look may put it back at once
        top = procs.parents[4 if isinstance(home, PersonsHome) else 3]
        (top / "cgroup.procs").write_text(str(pid))
        assert str(pid) not in procs.read_text().split()
    seen_and_mended(home, f"cgroup.{role} 0: member of")
    assert str(pid) in procs.read_text().split()
    assert (home.pid(NAME), helper(home, role)) == (vmm, pid)


def seen_and_mended(home: Home, field: str) -> None:
    home.look_again()
    home.mended(NAME, field)


def helper(home: Home, role: str) -> int:
    record = json.loads((home.runtime / NAME / "launch.json").read_text())
    return int(next(each["pid"] for each in record["helpers"] if each["role"] == role))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def events(home: Home) -> list[str]:
    path = home.path / "observed" / NAME / "events.jsonl"
    found = (json.loads(line) for line in path.read_text().splitlines())
    return [event["message"] for event in found if event["kind"] == "drift"]


def whole(home: Home) -> None:
    """The last replacement lacks nothing, and works."""
    until(lambda: home.run(NAME, "true", check=False).returncode == 0, READY, "it answers")
    home.ready(NAME)
    assert home.box("verify", NAME).returncode == 0
    assert home.vmms(NAME) == [home.pid(NAME)]


# -- a helper of root's


@pytest.fixture(scope="module")
def shares(shared_home: Home) -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="boxtest-") as folder:
        Path(folder).chmod(0o755)  # one that sees the host's root goes there by its path
        shared_home.put(NAME, boxfile((owned(Path(folder) / "ro", 0o755), "/src", "ro")))
        shared_home.ready(NAME)
        yield shared_home
        whole(shared_home)
        shared_home.box("delete", NAME)


@cases("virtiofsd")
def test_virtiofsd_without_it_costs_the_vm_its_life(shares: Home, missing: str) -> None:
    script = str(Path(sabotaged.__file__))
    replaced(shares, "virtiofsd", missing, lambda program: [sys.executable, script, str(program)])


def test_what_changed_in_a_live_virtiofsd_is_put_back(shares: Home) -> None:
    put_back(shares, "virtiofsd")


# -- an ordinary user's


@pytest.fixture(scope="module")
def someone() -> Iterator[Person]:
    with person() as made:
        shutil.copy(sabotaged.__file__, made.folder / "sabotaged.py")
        yield made


def as_user(home: PersonsHome) -> Callable[[Path], list[str]]:
    def argv(program: Path) -> list[str]:
        words = home.command()
        script = str(home.owner.folder / "sabotaged.py")
        assert words[-2:] == ["-m", "controller.cli.main"]
        return [*words[:-2], script, str(program)]

    return argv


@pytest.fixture(scope="module")
def users(someone: Person) -> Iterator[PersonsHome]:
    with persons_home(someone) as home:
        home.start()
        home.put(NAME, TINY)
        home.ready(NAME)
        yield home
        whole(home)


@cases("vmm")
def test_vmm_of_a_user_without_it_is_replaced(users: PersonsHome, missing: str) -> None:
    replaced(users, "vmm", missing, as_user(users))


def test_vmm_of_a_user_with_a_lowered_hard_limit_is_replaced(users: PersonsHome) -> None:
    """Nobody but root raises one again (getrlimit(2)), so another VMM takes its place."""
    users.ready(NAME)
    pid = users.pid(NAME)
    before = Path(f"/proc/{pid}/limits").read_text()
    uid = Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0]
    lower = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "prlimit"]
    subprocess.run([*lower, f"--pid={pid}", "--nofile=100:100"], check=True, timeout=20)
    users.look_again()
    users.mended(NAME, "rlimits.nofile")
    until(lambda: users.pid(NAME) not in (0, pid), 40, f"another VMM; {users.log()}")
    users.ready(NAME)
    assert Path(f"/proc/{users.pid(NAME)}/limits").read_text() == before


@pytest.fixture(scope="module")
def bridged(someone: Person) -> Iterator[UserNetHome]:
    with built_lab() as lab, user_home(someone, lab) as home:
        home.start()
        home.put(NAME, BOXFILE)
        home.ready(NAME)
        yield home
        whole(home)


@cases("keeper")
def test_keeper_of_a_users_network_without_it_is_replaced(
    bridged: UserNetHome, missing: str
) -> None:
    replaced(bridged, "keeper", missing, as_user(bridged))


@cases("pasta")
def test_pasta_of_a_users_network_without_it_is_replaced(
    bridged: UserNetHome, missing: str
) -> None:
    replaced(bridged, "pasta", missing, as_user(bridged))


@pytest.mark.long
@pytest.mark.parametrize("role", ["keeper", "pasta"])
def test_what_changed_in_a_live_helper_of_a_users_network_is_put_back(
    bridged: UserNetHome, role: str
) -> None:
    put_back(bridged, role)
