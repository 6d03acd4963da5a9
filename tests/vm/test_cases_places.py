"""Sockets that are in the way and names that are long, in a home deeper than a socket's path."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

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
from tests.vm.harness import TINY, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

DEEP = "/".join(["a-folder-of-a-long-name-and-deep-below-the-others"] * 4) + "/home"
LONG = "x" * 30 + "-" + "y" * 32
SOCKETS = ("agent.sock", "qmp.sock", "con.sock")


@pytest.fixture(scope="module")
def home() -> Iterator[CaseHome]:
    with case_home(below=DEEP) as home, bystander(home):
        assert len(str(home.path / "box.sock")) > 200
        home.put("ibis")
        home.ready("ibis")
        yield home


@pytest.fixture(autouse=True)
def in_every_case(home: CaseHome) -> Iterator[None]:
    with undisturbed(home, BYSTANDER):
        yield


def sockets(home: CaseHome, name: str) -> dict[str, int]:
    return {one: (home.runtime / name / one).lstat().st_ino for one in SOCKETS}


@pytest.mark.parametrize(
    ("kind", "unseen"),
    [("stale", False), ("file", False), ("symlink", False), ("symlink", True)],
    ids=["stale", "file", "symlink", "symlink-unseen"],
)
def test_l1_what_stands_at_the_socket_paths_is_replaced_and_never_followed(
    home: CaseHome, tmp_path: Path, kind: str, unseen: bool
) -> None:
    home.ready("ibis")
    canary = tmp_path / "canary"
    canary.write_text("never touched\n")
    canary.chmod(0o640)
    facts = canary.stat()
    folder = home.runtime / "ibis"
    controller = home.controller
    assert controller is not None
    if unseen:
        os.kill(controller.pid, signal.SIGSTOP)  # the death happens while nobody looks
    former = home.pid("ibis")
    for one in SOCKETS:
        if kind == "stale":
            continue  # the dead VMM's own socket is in the way
        (folder / one).unlink()
        if kind == "file":
            (folder / one).write_text("in the way\n")
        else:
            (folder / one).symlink_to(canary)
    kill_vmm(home, "ibis")
    if unseen:
        os.kill(controller.pid, signal.SIGCONT)
    replaced(home, "ibis", former)
    home.ready("ibis")
    for one in SOCKETS:
        assert (folder / one).is_socket()
        assert not (folder / one).is_symlink()
    after = canary.stat()
    assert canary.read_text() == "never touched\n"
    assert (after.st_mode, after.st_uid, after.st_ino) == (
        facts.st_mode,
        facts.st_uid,
        facts.st_ino,
    )
    assert (after.st_mtime_ns, after.st_ctime_ns) == (facts.st_mtime_ns, facts.st_ctime_ns)
    assert len(home.vmms("ibis")) == 1


def test_l1_a_live_vmms_sockets_stay_the_same_files(home: CaseHome) -> None:
    home.ready("ibis")
    pid, before = home.pid("ibis"), sockets(home, "ibis")
    home.put("ibis", TINY + "labels: {a: 'change'}\n")
    home.passes(2)
    assert sockets(home, "ibis") == before
    assert home.run("ibis", "echo", "ok").stdout == b"ok\n"
    assert home.pid("ibis") == pid


def test_l3_long_names_are_strangers_and_deleting_one_leaves_the_other(home: CaseHome) -> None:
    pair = ["warehouse-alpha-1", "warehouse-alpha-2"]
    assert len(LONG) == 63
    for name in (*pair, LONG):
        home.put(name)
    for name in (*pair, LONG):
        home.ready(name)
        said = home.run(name, "sh", "-c", f"echo {name} > /data/who; cat /data/who; sync").stdout
        assert said == f"{name}\n".encode()
    everything = [*pair, LONG, "ibis", BYSTANDER]
    for of in (
        lambda n: home.pid(n),
        lambda n: home.report(n)["vmm"]["uid"],
        lambda n: tuple(sockets(home, n).values()),
        lambda n: tuple(home.cgroups(n)),
        lambda n: os.readlink(f"/proc/{home.pid(n)}/ns/net"),
    ):
        assert len({of(name) for name in everything}) == len(everything)
    other, long = home.pid(pair[1]), home.pid(LONG)
    home.remove(pair[0])
    home.nothing_left(pair[0])
    for name, pid in ((pair[1], other), (LONG, long)):
        assert home.pid(name) == pid
        assert home.run(name, "cat", "/data/who").stdout == f"{name}\n".encode()
    home.remove(LONG)
    home.nothing_left(LONG)
    assert home.pid(pair[1]) == other


def test_l3_a_name_of_64_characters_is_refused_early(home: CaseHome) -> None:
    data = f"name: {LONG}z\nstate: stopped\n".encode()
    done = home.box("apply", "-f", "-", data=data, check=False)
    assert done.returncode == 2
    assert b"63" in done.stderr
    (home.boxes / f"{LONG}z.box.yaml").write_text("state: stopped\n")
    home.passes(2)
    assert home.box("describe", LONG + "z", check=False).returncode != 0
    assert not (home.path / "state" / f"{LONG}z.toml").exists()
    (home.boxes / f"{LONG}z.box.yaml").unlink()
    until(lambda: home.answers(), 5, "the controller is well")
