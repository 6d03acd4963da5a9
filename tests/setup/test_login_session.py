"""An ordinary user's login session where systemd is PID 1: how a controller comes to its groups.

The session's process is in a subtree that is not the user's, so only the host's systemd can move it
to the scope that the user's systemd makes. The other cases are in tests/vm/test_userscope.py.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.confinement.cgrouptree import top_tree
from tests.setup.freshroot import fresh_root
from tests.setup.machine import PACKAGES, Machine, machine
from tests.setup.test_from_nothing import SETUP_SECONDS, copy_clone
from tests.vm.harness import PATIENCE, until

pytestmark = [
    pytest.mark.setup, pytest.mark.long, pytest.mark.needs_root,
    pytest.mark.timeout(900 * PATIENCE),
]  # fmt: skip

NAME, UID = "boxtest", 1_880_100_002
SERVICE = f"user.slice/user-{UID}.slice/user@{UID}.service"
SCOPE = f"{SERVICE}/app.slice/box.scope"
STAYS_SECONDS = 10  # UserStopDelaySec of logind.conf(5)

# Does what a controller does, leaves something like a VMM behind, and says where it was and is.
ASK = """
import os, sys
from reconcilers.confinement import handed, userscope
from reconcilers.confinement.cgrouptree import CgroupTree
top, name = "/sys/fs/cgroup", sys.argv[1]
print(handed.own_group())
userscope.settle(CgroupTree({}, top))
base, obstacle = handed.delegated(top)
assert obstacle is None, obstacle
group = os.path.join(top, base, "box", name)
os.makedirs(group)
if os.fork() == 0:
    with open(os.path.join(group, "cgroup.procs"), "w") as file:
        file.write("0")
    os.setsid()
    quiet = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(quiet, number)
    os.execvp("sleep", ["sleep", "600"])
print(base)
print(handed.own_group())
"""


class Host:
    """A machine with that user, and with a box that he can run."""

    def __init__(self, booted: Machine) -> None:
        self.run, self.group, self.outside = booted.run, booted.group, booted.outside

    def ask(self, how: str, name: str) -> list[str]:
        command = f"/opt/box/.venv/bin/python -B -c {shlex.quote(ASK)} {name}"
        done = self.run(f"{how} {command}")
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()

    def log_in(self, name: str) -> list[str]:
        """In a session of his own, which ends with it."""
        service = f"-p PAMName=login -p User={NAME}"
        return self.ask(f"systemd-run --quiet --wait --pipe {service}", name)

    def runs(self, name: str) -> bool:
        procs = self.group / SCOPE / "box" / name / "cgroup.procs"
        return procs.exists() and procs.read_text() != ""


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    unified = top_tree().unified
    if not unified:
        pytest.skip("no cgroup v2 tree is mounted")
    with fresh_root(request.param, tmp_path_factory.mktemp("host")) as root:
        copy_clone(root.path / "opt/box")
        made = root.run(
            f"set -e; apt-get -q update; apt-get -q -y install --no-install-recommends {PACKAGES};"
            f" useradd --uid {UID} --create-home --shell /bin/sh {NAME}; /opt/box/dev setup",
            timeout=SETUP_SECONDS,
        )
        assert made.returncode == 0, made.stdout[-2000:]
        with machine(root, Path(unified, f"boxtest-{UID}")) as booted:
            yield Host(booted)


def test_the_hosts_systemd_moves_a_session_and_its_end_is_the_vms_end(host: Host) -> None:
    before, base, after = host.log_in("one")
    assert before.startswith(f"user.slice/user-{UID}.slice/session-")
    assert (base, after) == (SCOPE, f"{SCOPE}/box-controller")
    assert host.runs("one")
    until(lambda: not (host.group / SERVICE).exists(), 60, "his systemd has ended")
    assert not host.runs("one")


def test_who_lingers_keeps_his_vms_and_needs_no_session(host: Host) -> None:
    done = host.run(f"loginctl enable-linger {NAME}")
    assert done.returncode == 0, done.stdout
    assert host.log_in("two")[1:] == [SCOPE, f"{SCOPE}/box-controller"]
    until(lambda: "session-" not in host.run("systemctl list-units --plain").stdout, 20, "it ended")
    time.sleep(2 * STAYS_SECONDS)
    assert host.runs("two")
    user = f"setpriv --reuid={UID} --regid={NAME} --init-groups"
    before, base, _ = host.ask(f"env --unset=XDG_RUNTIME_DIR {user}", "three")
    assert before == host.outside.name
    assert base == SCOPE
    assert host.runs("two") and host.runs("three")
