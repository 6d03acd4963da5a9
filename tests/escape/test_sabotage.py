"""Each check of the escape suite fails when its wall is gone: one that cannot fail proves nothing.

The product runs with walls taken away and its readback blinded (saboteur.py), so what the suite
finds it has found by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from reconcilers.confinement import syscalls
from tests.conftest import is_put_off
from tests.escape import impostors, walls, walls_beyond, walls_shares  # noqa: F401
from tests.escape.runs import Made, Run, suite
from tests.vm.harness import ROOT

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(330)]

RUNS = {
    "devices": Run(
        ("one port", "no network card", "secret token", "capabilities", "memory limit",
         "no file of the host", "no groups"),
        (
            ("inside.agent", r"workload opened the agent's port box\.agent\.1"),
            ("inside.api", r"the guest has the ports .*box\.agent\.1"),
            ("inside.network_none", "virtio network card"),
            ("inside.token", r"the token is in /proc/cmdline"),
            ("outside.capabilities", r"CapInh 0x1$"),
            ("outside.uid", "is in the groups 4"),
            ("outside.limits", "memory limit of a is 65536 MiB"),
            # deleted: as soon as somebody makes a user, who gets into another file of that name
            ("outside.descriptors", r"/etc/passwd( \(deleted\))?: of the host"),
        ),
        ("inside.kvm", "outside.no_new_privs", "outside.seccomp", "outside.namespaces"),
    ),
    "image": Run(
        ("empty image", "hidden agent", "no_new_privs", "pids limit", "no folder of the host",
         "read-only root"),
        (
            ("inside.paths", r"paths\.7 succeeded inside the guest"),
            ("inside.traversal", r"up\.7 succeeded inside the guest"),
            ("inside.agent", r"agent\.file succeeded inside the guest"),
            ("inside.api", r"api\.find succeeded inside the guest: .*box\.sock"),
            ("outside.no_new_privs", "NoNewPrivs is 0"),
            ("outside.limits", "process limit of a is 30000"),
            ("outside.descriptors", r"is /: of the host"),
            ("outside.root", "a may write to"),
        ),
        ("inside.kernel", "outside.capabilities", "outside.seccomp", "outside.uid"),
    ),
    "one user": Run(
        ("own user", "private disk", "private sockets", "cpu limit", "nosuid root", "no device",
         "clean deletion"),
        (
            ("outside.uid", "two sandboxes share a user"),
            ("outside.limits", "CPU quota of a is 64"),
            ("outside.root", "set-user-ID programs count"),
            ("outside.descriptors", "/dev/zero: a device"),
            ("between.disk", "past its folders of b succeeds from the namespaces of a"),
            ("between.sockets", "connect past its folders of b succeeds from the user of a"),
            ("between.memory", "process_vm_readv of b succeeds from the user of a"),
            ("between.proc", "of b succeeds from the user of a"),
            ("between.signals", "kill of b succeeds from the user of a"),
            ("between.start", "while b started, .* worked from the user of a"),
            ("after.clean", "the control group .*-left"),
        ),
        ("outside.namespaces", "outside.network_device"),
    ),
    "no filter, one IPC": Run(
        ("seccomp", "ipc namespace", "core limit", "no canary in the root"),
        (
            ("outside.seccomp", "Seccomp is 0 with 0 filters"),
            ("outside.namespaces", "a shares our ipc namespace"),
            ("outside.limits", "a may dump"),
            ("outside.root", "a sees the canary"),
            ("between.sockets", "shared memory of the host of b succeeds from the namespaces"),
        ),
        ("outside.no_new_privs", "outside.capabilities", "between.memory"),
    ),
    "any call, one network": Run(
        ("seccomp program", "net namespace", "bounding set", "empty environment",
         "file size limit"),
        (
            ("outside.seccomp", "allows (fork|kill)"),
            ("outside.namespaces", "a shares our net namespace"),
            ("outside.network_device", "a has the devices"),
            ("outside.capabilities", "has CapBnd"),
            ("outside.root", "bytes of environment"),
            ("outside.limits", "a may write files of unlimited bytes"),
            ("between.sockets", r"the host's .* of b succeeds from the namespaces of a"),
        ),
        ("outside.uid", "outside.no_new_privs", "between.disk", "between.signals"),
    ),
    "standard, one PID namespace": Run(
        ("pid namespace", "user"),
        (
            ("outside.namespaces", "a shares our pid namespace"),
            ("outside.uid", "is host user 0"),
        ),
        ("outside.root", "outside.capabilities", "outside.limits"),
        isolation="standard",
    ),
    "standard, processes of others": Run(
        ("pid namespace",),
        (
            ("between.memory", "process_vm_readv of b succeeds from the namespaces of a"),
            ("between.signals", "kill of b succeeds from the namespaces of a"),
            ("between.start", "while b started, .* worked from the namespaces of a"),
        ),
        ("outside.uid", "between.disk", "between.sockets"),
        isolation="standard",
    ),
    "host's mounts": Run(
        ("mnt namespace", "cpu weight"),
        (
            ("outside.namespaces", "a shares our mnt namespace"),
            ("outside.root", "the root of a is the host's"),
            ("outside.limits", "no group around a weighs less than 1 "),
        ),
        ("outside.seccomp", "outside.uid"),
    ),
    "let nobody else go first": Run(
        ("time slice",),
        (("outside.limits", "a has a time slice of .* no longer than ours"),),
        ("outside.uid",),
    ),
    "another device": Run(
        ("empty network", "uts namespace", "its own process", "proof from outside"),
        (
            ("outside.network_device", "a has the devices lo spy0 spy1"),
            ("outside.namespaces", "a shares our uts namespace"),
            ("inside.kernel", "it ran elsewhere"),
            ("lies.uname", "box verify repeats the guest's lie"),
        ),
        ("outside.root",),
    ),
    "a container": Run(
        ("kernel of its own", "cgroup namespace"),
        (
            ("inside.kernel", "the guest has the host's boot id"),
            ("inside.kvm", "kvm.node succeeded inside the guest"),
            ("outside.namespaces", "a shares our cgroup namespace"),
        ),
        ("outside.uid",),
    ),
    "writable guest": Run(
        ("read-only guest",),
        (("inside.readonly_root", r"plain\.\w+ succeeded inside the guest"),),
        (),
    ),
    "writable image": Run(
        ("read-only image",),
        (("inside.readonly_root", r"device\.write succeeded inside the guest"),),
        (),
    ),
    "emulated": Run(
        ("hardware",),
        (("outside.hardware", "kvm was asked for, and the processor is emulated"),),
        ("outside.capabilities",),
        accel="kvm",
    ),
    "in the VMM's place": Run(
        ("uts namespace", "seccomp program", "no groups", "no canary in the root", "net namespace",
         "landlock"),
        (
            ("jail.launch", "it shares its net namespace with the host"),
            ("jail.calls", "fork is not refused"),
            ("jail.identity", "groups 1, "),
            ("jail.files", "in the VMM's place sees .*/canary"),
            ("jail.neighbour", "of b succeeds for process"),
        ),
        ("outside.capabilities",),
    ),
    "a lying guest": Run(
        ("bounded frames", "strict protocol", "limited patience", "lost is lost", "escaped words",
         "deletion"),
        (
            ("channel.length", "still listens after|the controller grew"),
            ("channel.streams", "still listens after"),
            ("channel.replies", "still listens after an answer to a question nobody asked"),
            ("channel.garbage", "still listens after a MiB of garbage"),
            ("channel.drip", "still waits for it after"),
            ("channel.output", "still listens after more output|MiB that nobody reads"),
            ("channel.cut", "half an answer is status 0"),
            ("channel.names", r"U\+001B raw|shows U\+"),
            ("channel.deleted", "lives on"),
        ),
        ("outside.capabilities",),
    ),
    "a greedy guest": Run(
        ("cpu limit", "memory limit", "disk size", "mending"),
        (
            ("load.forks", "its quota is 64"),
            ("load.memory", "its memory limit is 68719476736"),
            ("load.disk", "its disk takes .* of 64 MiB"),
            ("load.answers", "no command works"),
        ),
        ("outside.capabilities",),
        scale=0.5,
    ),
    "a heavy guest": Run(
        ("cpu weight",),
        (
            ("outside.limits", "no group around a weighs less than 1 "),
            ("load.forks", r"spawning takes .* more than 3 times, in"),
        ),
        ("outside.capabilities",),
    ),
    "shared too much": Run(
        ("links stay links", "a link that comes later", "nothing beside a share",
         "read-only share", "nodev share", "nosuid in the guest", "seccomp program"),
        (
            ("mounts.paths", "shows the canary"),
            ("mounts.links", "shows the canary"),
            ("mounts.swapped", "shows the canary"),
            ("mounts.readonly", "of the host's directory was changed"),
            ("mounts.outward", "which is set-ID"),
            ("mounts.inward", "gave a user rights"),
            ("mounts.helper", "virtiofsd is "),
        ),
        ("outside.capabilities",),
    ),
    "an open network": Run(
        ("network rules", "no IP port", "nothing left of a network"),
        (
            ("network.host", "was reached from the guest"),
            ("network.private", "was reached from the guest"),
            ("network.gateway", "was reached from the guest|leads to"),
            ("network.neighbour", "was reached from"),
            ("network.egress_list", "was reached from the guest"),
            ("network.vmm", "was reached from|heard by n2"),
            ("network.egress_none", "was reached from the guest"),
            ("network.api", "somebody listens at"),
            ("network.removed", "after their deletion there is still: .*left-n"),
        ),
        ("outside.capabilities",),
    ),
    "a user's open network": Run(
        ("network rules", "no IP port"),
        (
            ("network.host", "was reached from the guest"),
            ("network.private", "was reached from the guest"),
            ("network.gateway", "was reached from the guest|leads to"),
            ("network.egress_list", "was reached from the guest"),
            ("network.vmm", "was reached from"),
            ("network.egress_none", "was reached from the guest"),
            ("network.api", "somebody listens at"),
        ),
        ("outside.capabilities",),
        ordinary=True,
    ),
    "a user's open share": Run(
        ("links stay links", "a link that comes later", "nothing beside a share",
         "read-only share", "nodev share", "nosuid in the guest"),
        (
            ("mounts.paths", "shows the canary"),
            ("mounts.links", "shows the canary"),
            ("mounts.swapped", "shows the canary"),
            ("mounts.readonly", "of the host's directory was changed"),
            ("mounts.inward", "gave a user rights"),
            ("mounts.helper", "virtiofsd is "),
        ),
        ("outside.capabilities",),
        ordinary=True,
    ),
    "in a user's VMM's place": Run(
        ("seccomp program", "net namespace", "landlock", "no canary in the root"),
        (
            ("jail.launch", "it shares its net namespace with the host"),
            ("jail.calls", "clone3 is not refused"),
            ("jail.identity", "it shares our net namespace"),
            ("jail.files", "in the VMM's place sees .*/canary"),
            ("jail.neighbour", "of b succeeds for process"),
        ),
        ("outside.capabilities",),
        ordinary=True,
    ),
}  # fmt: skip

# Runs of minutes: much of what they wait for is somebody's patience.
LONG = frozenset(
    {"a lying guest", "a greedy guest", "a heavy guest", "shared too much",
     "a user's open network", "a user's open share", "in a user's VMM's place"}
)  # fmt: skip
SINCE_6_12 = pytest.mark.skipif(not syscalls.time_slice(0), reason="no time slices before 6.12")


def _case(name: str, *check: str) -> Any:
    marks = [pytest.mark.long] if name in LONG else []
    marks += [SINCE_6_12] if "time slice" in RUNS[name].walls else []
    return pytest.param(name, *check, id=" - ".join([*check, name]), marks=marks)


FAILING = [_case(name, check) for name, run in RUNS.items() for check, _ in run.fail]
HOLDING = [_case(name, check) for name, run in RUNS.items() for check in run.hold]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    """The runs of the tests that were selected, begun in their order."""
    runs = Made()
    here = (i for i in request.session.items if i.path == request.path and not is_put_off(i))
    for name in (i.callspec.params.get("run") for i in here if hasattr(i, "callspec")):
        runs.begin(RUNS[name])
    yield runs
    runs.end()


@pytest.mark.parametrize(("run", "check"), FAILING)
def test_check_fails_without_its_wall(run: str, check: str, made: Made) -> None:
    wanted = RUNS[run]
    result, reading = made.found(wanted)[check]
    assert result == "FAIL", reading
    assert re.search(dict(wanted.fail)[check], reading), reading


@pytest.mark.parametrize(("run", "check"), HOLDING)
def test_check_of_a_wall_that_stands_passes(run: str, check: str, made: Made) -> None:
    result, reading = made.found(RUNS[run])[check]
    assert result == "PASS", reading


@pytest.mark.parametrize("run", [_case(name) for name in RUNS])
def test_nothing_else_fails(run: str, made: Made) -> None:
    failed = {check for check, (result, _) in made.found(RUNS[run]).items() if result == "FAIL"}
    assert failed == set(dict(RUNS[run].fail))


def test_every_check_is_sabotaged() -> None:
    done = suite("box", "--list")
    known = {line.split()[0] for line in done.stdout.splitlines()}
    sabotaged = {check for run in RUNS.values() for check in dict(run.fail)}
    assert len(known) > 20
    assert known - sabotaged == set(), "checks that nobody has seen fail"
    assert sabotaged - known == {"after.clean"}


def test_every_wall_is_taken_away_by_a_run() -> None:
    there = {*walls.WALLS, *impostors.IMPOSTORS}
    taken = {wall for run in RUNS.values() for wall in run.walls}
    assert (taken - there, there - taken) == (set(), set())


def test_the_document_lists_what_is_taken_away() -> None:
    text = (ROOT / "docs" / "escape-suite.md").read_text()
    section = text.split("## How it is known that a check can fail", 1)[1].split("\n## ", 1)[0]
    rows = {line for line in section.splitlines() if line.startswith("| ")}
    expected = {
        f"| {'as an ordinary user: ' * run.ordinary}{', '.join(run.walls)} |"
        f" {', '.join(dict(run.fail))} |"
        for run in RUNS.values()
    }
    assert rows - {"| without | these fail, and nothing else |"} == expected
