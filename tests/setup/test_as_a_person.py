"""The first hour of somebody who is not root but may use sudo, in a Debian with nothing else."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.setup.freshroot import FreshRoot, fresh_root
from tests.setup.sharing import share
from tests.setup.test_from_nothing import SETUP_SECONDS, copy_clone
from tests.vm.harness import PATIENCE

pytestmark = [
    pytest.mark.setup, pytest.mark.long, pytest.mark.needs_root,
    pytest.mark.timeout(900 * PATIENCE),
]  # fmt: skip

NAME, HOME = "boxtest", "/home/boxtest"
UID = 1_880_100_001  # whose control groups nobody else's are: those are the host's


class PersonsRoot:
    """A root in which everything is done as that user."""

    def __init__(self, root: FreshRoot) -> None:
        self.root = root

    def run(self, command: str, *, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        line = f". /etc/profile; cd {HOME}/box; {command}"
        return self.root.run(f"su {NAME} -c {shlex.quote(line)}", timeout=timeout)


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def debian(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PersonsRoot]:
    """After `./dev setup` of a user with sudo."""
    parent = tmp_path_factory.mktemp("person")
    with fresh_root(request.param, parent) as root:
        copy_clone(root.path / HOME.lstrip("/") / "box")
        made = root.run(
            "set -e; apt-get -q update; apt-get -q -y install --no-install-recommends sudo;"
            f" useradd --uid {UID} --home-dir {HOME} --shell /bin/sh {NAME};"
            f" chown -R {NAME}: {HOME}; sed -i /^{NAME}:/d /etc/subuid /etc/subgid;"
            f" echo '{NAME} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{NAME}",
            timeout=300,
        )
        assert made.returncode == 0, made.stdout[-2000:]
        person = PersonsRoot(root)
        done = person.run("./dev setup", timeout=SETUP_SECONDS)
        print(done.stdout)
        assert done.returncode == 0, done.stdout[-4000:]
        assert "Set-up is complete." in done.stdout
        handover = f".venv/bin/python -B -m reconcilers.confinement.handover {UID}"
        assert f"With sudo: {HOME}/box/{handover}" in done.stdout
        assert "identities for strict sandboxes: --add-subuids 131072-196607" in done.stdout
        try:
            yield person
        finally:
            remove_groups()


def groups() -> list[Path]:
    """The user's, in each hierarchy. Not by a walk: groups of others come and go meanwhile."""
    top = Path("/sys/fs/cgroup")
    found = (each / "box-users" / str(UID) for each in (top, *top.iterdir()))
    return [each for each in found if each.is_dir()]


def remove_groups() -> None:
    for place in groups():
        for each in [*sorted(place.rglob("*"), reverse=True), place]:
            if each.is_dir():
                each.rmdir()


def test_every_file_of_the_clone_is_the_persons(debian: PersonsRoot) -> None:
    assert debian.run("find . ! -user boxtest").stdout == ""


def test_set_up_again_asks_for_nothing(debian: PersonsRoot) -> None:
    for command in ("./dev setup", "./dev groups"):
        done = debian.run(command)
        assert done.returncode == 0, done.stdout
        assert "sudo" not in done.stdout


def test_the_doctor_finds_nothing_that_fails(debian: PersonsRoot) -> None:
    done = debian.run(".venv/bin/box doctor")
    assert done.returncode == 0, done.stdout


def test_the_demo_tells_the_whole_story(debian: PersonsRoot) -> None:
    done = debian.run("./dev demo", timeout=180)
    assert done.returncode == 0, done.stdout
    assert "user 196607, supplementary groups: none" in done.stdout
    assert "That was the whole story" in done.stdout
    assert [each for place in groups() for each in place.glob("box/*/*")] == []


def test_directories_are_shared_with_what_set_up_installed(debian: PersonsRoot) -> None:
    line = share(f"{HOME}/box/.venv/bin/box", "strict standard", without_rw="strict")
    done = debian.run(line, timeout=240)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(f"shown\nby standard\nit is of {UID}\n"), done.stdout


def test_tests_run_as_the_person_also_after_they_ran_with_sudo(debian: PersonsRoot) -> None:
    few = "test tests/unit/specs/test_names.py tests/unit/test_dev.py"
    for command in (f"./dev {few}", f"sudo --preserve-env ./dev {few}", f"./dev {few}"):
        done = debian.run(command, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}"
        assert " passed" in done.stdout
    assert debian.run("find . ! -user boxtest").stdout == ""
