"""How files arrive in the watched folder: feeders that swap links, editors, backups and twins."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest

from tests.vm.cases import (
    BYSTANDER,
    CaseHome,
    bystander,
    case_home,
    names,
    opened_at_all,
    undisturbed,
)
from tests.vm.harness import TINY, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def home() -> Iterator[CaseHome]:
    with case_home() as home, bystander(home):
        yield home


@pytest.fixture(autouse=True)
def in_every_case(home: CaseHome) -> Iterator[None]:
    with undisturbed(home, BYSTANDER):
        yield


def memory_kib(home: CaseHome, name: str) -> int:
    return int(home.run(name, "grep", "MemTotal", "/proc/meminfo").stdout.split()[1])


def saved(home: CaseHome, name: str, generation: int) -> None:
    until(lambda: home.generation(name) == generation, 20, f"save {generation} is taken")


def test_w2_a_switched_link_is_one_update_and_equal_content_none(home: CaseHome) -> None:
    """fern.yaml -> ..data/fern.yaml, ..data -> ..v1: the way Kubernetes mounts a ConfigMap."""
    boxes = home.boxes
    for version, ram in (("..v1", 192), ("..v2", 200), ("..v3", 200)):
        (boxes / version).mkdir()
        (boxes / version / "fern.yaml").write_text(TINY.replace("192", str(ram)))
        # a file of the feeder that nothing links to declares nothing
        (boxes / version / "ghost.yaml").write_text("state: stopped\n")
    (boxes / "..data").symlink_to("..v1")
    (boxes / "fern.yaml").symlink_to("..data/fern.yaml")
    home.ready("fern")
    first, memory = home.pid("fern"), memory_kib(home, "fern")
    home.run("fern", "sh", "-c", "echo kept > /data/file; sync")

    def switch(version: str) -> None:
        (boxes / "..new").symlink_to(version)
        (boxes / "..new").rename(boxes / "..data")

    switch("..v2")
    until(lambda: home.generation("fern") == 2, 20, "the update is taken")
    until(lambda: home.report("fern").get("vmm", {}).get("pid") not in (None, first), 60, "new VMM")
    home.ready("fern")
    second = home.pid("fern")
    assert second != first
    assert memory_kib(home, "fern") > memory + 6000  # 8 MiB more
    assert home.run("fern", "cat", "/data/file").stdout == b"kept\n"

    switch("..v3")
    home.passes(3)
    assert (home.pid("fern"), home.generation("fern")) == (second, 2)
    assert len(home.events("fern", "configured")) == 1
    # never seen as deleted in between: no removal began, no disk was moved aside
    assert not (home.path / "disks" / ".deleted").exists()
    assert not home.events("fern", "held")
    assert names(home) == ["fern", BYSTANDER]
    for version in ("..v1", "..v2"):  # and the feeder tidies up behind itself
        (boxes / version / "fern.yaml").unlink()
    home.passes(2)
    assert (home.pid("fern"), home.generation("fern")) == (second, 2)
    (boxes / "fern.yaml").unlink()
    home.nothing_left("fern")


def test_w3_five_atomic_saves_are_updates_of_the_same_vm(home: CaseHome) -> None:
    home.put("moss", TINY)
    home.ready("moss")
    pid = home.pid("moss")
    target = home.boxes / "moss.box.yaml"
    for number in range(1, 5):
        temporary = home.boxes / ".moss.tmp"
        temporary.write_text(TINY + f"labels: {{save: 'n{number}'}}\n")
        temporary.rename(target)
        saved(home, "moss", 1 + number)
    outside = home.path / "moss.elsewhere"
    outside.write_text(TINY + "labels: {save: outside}\nenv: {SAVED: outside}\n")
    outside.rename(target)
    saved(home, "moss", 6)
    home.valid("moss")
    assert home.pid("moss") == pid
    assert home.run("moss", "sh", "-c", "echo $SAVED").stdout == b"outside\n"


def test_w3_a_slow_save_in_place_keeps_the_last_good_spec_and_ends_as_one_update(
    home: CaseHome,
) -> None:
    former = home.generation("moss")
    home.put("moss", TINY)
    saved(home, "moss", former + 1)  # it may run already, with another text
    home.ready("moss")
    pid, generation = home.pid("moss"), home.generation("moss")
    text = TINY + "env: {SLOWLY: saved}\nlabels: {a: 'b'}\n"
    with open(home.boxes / "moss.box.yaml", "w") as file:
        home.valid("moss", "InvalidBoxfile")
        time.sleep(2)
        assert home.run("moss", "echo", "on").stdout == b"on\n"
        file.write(text[:-12])
        file.flush()
        until(lambda: "moss.box.yaml:6" in home.message("moss", "Valid"), 10, "the broken half")
        time.sleep(2)
        assert home.run("moss", "echo", "on").stdout == b"on\n"
        assert home.generation("moss") == generation
        file.write(text[-12:])
    home.valid("moss")
    assert (home.pid("moss"), home.generation("moss")) == (pid, generation + 1)
    assert home.run("moss", "sh", "-c", "echo $SLOWLY").stdout == b"saved\n"


def test_w6_backups_are_ignored_a_fifo_never_opened_and_a_twin_is_a_named_conflict(
    home: CaseHome,
) -> None:
    boxes = home.boxes
    (boxes / "pine.yaml").write_text(TINY)
    home.ready("pine")
    pid = home.pid("pine")
    (boxes / ".pine.yaml.swp").write_bytes(bytes(range(256)) * 16)
    for junk in ("pine.yaml~", "#pine.yaml#", "pine.yaml.bak"):
        (boxes / junk).write_text("cpus: 9\nno such key: true\n")
    (boxes / ".#pine.yaml").symlink_to("root@host.1234:567")
    (boxes / "y.yaml").mkdir()
    os.mkfifo(boxes / "x.yaml")
    with opened_at_all(boxes / "x.yaml") as opens:
        (boxes / "pine.yml").write_text(TINY.replace("192", "256"))
        home.valid("pine", "Conflict")
        home.passes(3)
        shown = home.box("describe", "pine").stdout.decode()
        assert "pine.yaml is in force" in shown
        assert "pine.yml" in shown
        refused = home.box("apply", "-f", str(boxes), check=False)
        assert (refused.returncode, b"pine.yml" in refused.stderr) == (2, True), refused.stderr
        assert names(home) == sorted({*names(home)} & {"moss", "pine", BYSTANDER})
        assert (home.pid("pine"), home.generation("pine")) == (pid, 1)
        (boxes / "pine.yml").unlink()
        home.valid("pine")
        home.passes(2)
    assert opens == []
    assert (home.pid("pine"), home.generation("pine")) == (pid, 1)
    assert home.events("pine", "exited") == []
    # The FIFO in the way stalls nothing: a change is still taken.
    (boxes / "pine.yaml").write_text(TINY + "labels: {seen: 'yes'}\n")
    until(lambda: home.generation("pine") == 2, 20, "a change is taken")
    assert home.pid("pine") == pid


def test_w6_the_watch_for_opens_sees_an_open(home: CaseHome) -> None:
    """The test above proves something only if this holds."""
    fifo = home.path / "seen"
    os.mkfifo(fifo)
    with opened_at_all(fifo) as opens, contextlib.suppress(OSError):
        os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
    assert len(opens) == 1
    fifo.unlink()
