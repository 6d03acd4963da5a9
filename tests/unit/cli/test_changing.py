"""apply, diff, delete, new and prune: files in the folder, and nothing when there is a mistake."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from controller.store import Record, Store
from reconcilers import disk
from reconcilers.layout import Layout
from specs.boxfile import Boxfile, Data, OnDelete
from tests.unit.cli.hostservice import serving
from tests.unit.cli.support import box, text

FERN = b"name: fern\ncpus: 1\n"


def test_apply_makes_the_home_and_the_file(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "fern.yaml").write_bytes(FERN)
    done = box(layout.home, "apply", "-f", "fern.yaml")
    assert (done.returncode, done.stdout) == (0, b"fern created\n")
    assert b"box controller" in done.stderr
    file = layout.boxes / "fern.box.yaml"
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (FERN, 0o600)
    assert box(layout.home, "apply", "-f", "fern.yaml").stdout == b"fern unchanged\n"
    (tmp_path / "fern.yaml").write_bytes(FERN + b"ram_mib: 256\n")
    assert box(layout.home, "apply", "-f", "fern.yaml").stdout == b"fern configured\n"


def test_apply_takes_standard_input_folders_and_toml(layout: Layout, tmp_path: Path) -> None:
    assert box(layout.home, "apply", "-f", "-", stdin=FERN).stdout == b"fern created\n"
    folder = tmp_path / "some"
    (folder / "moss").mkdir(parents=True)
    (folder / "moss" / "Boxfile").write_text("cpus: 1\n")
    (folder / "pine.box.toml").write_text('name = "pine"\n')
    (folder / ".hidden.yaml").write_text("nonsense: [")
    done = box(layout.home, "apply", "-f", str(folder))
    assert done.stdout == b"moss created\npine created\n"
    assert (layout.boxes / "pine.box.toml").exists()


def test_apply_dry_run_writes_nothing_not_even_a_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = box(home, "apply", "-f", "-", "--dry-run", stdin=FERN)
    assert done.stdout == b"fern created (dry run)\n"
    assert not home.exists()


def test_one_mistake_in_one_file_stops_all_of_them(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "fern.yaml").write_bytes(FERN)
    (tmp_path / "moss.yaml").write_text("cpus: many\nrma_mib: 3\n")
    done = box(layout.home, "apply", "-f", "fern.yaml", "-f", "moss.yaml")
    shown = text(done)
    assert done.returncode == 2
    assert "moss.yaml:1:7" in shown
    assert "ram_mib" in shown
    assert list(layout.boxes.iterdir()) == []


def test_every_mistake_of_a_folder_is_reported_together(layout: Layout, tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "Upper.box.yaml").write_text("cpus: 1\n")
    (folder / "fern.box.yaml").write_text("cpus: many\n")
    (folder / "fern.box.yml").write_text("cpus: 1\n")
    (folder / "moss.box.yaml").write_text("rma_mib: 3\n")
    done = box(layout.home, "apply", "-f", "some")
    shown = text(done)
    assert done.returncode == 2
    for words in (
        "some/Upper.box.yaml:1:1: ",
        "some/fern.box.yaml:1:1: fern.box.yml declares the same sandbox",
        "some/fern.box.yaml:1:7: cpus",
        "some/moss.box.yaml:1:1: rma_mib",
    ):
        assert words in shown, words
    assert list(layout.boxes.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"cpus: 1\n", "name"),
        (b"\xff\xfe", "UTF-8"),
        (b"name: fern\n---\nname: moss\n", "document"),
        (b"name: fern\nwarm: 3\n", "not supported yet"),
        (b"name: '\x1b[2J'\n", "name"),
        (b"#" * 300_000, "larger"),
    ],
)
def test_a_bad_boxfile_is_exit_2_with_a_place(layout: Layout, data: bytes, words: str) -> None:
    done = box(layout.home, "apply", "-f", "-", stdin=data)
    assert done.returncode == 2
    assert words.lower() in text(done).lower()
    assert b"\x1b" not in done.stderr


def test_files_that_cannot_be_read_are_named(layout: Layout, tmp_path: Path) -> None:
    done = box(layout.home, "apply", "-f", "nothing.yaml")
    assert (done.returncode, "nothing.yaml" in text(done)) == (1, True)
    (tmp_path / "empty").mkdir()
    done = box(layout.home, "apply", "-f", "empty")
    assert (done.returncode, "no Boxfile" in text(done)) == (2, True)
    assert box(layout.home, "apply").returncode == 2


def test_if_match_refuses_a_file_that_changed(layout: Layout) -> None:
    box(layout.home, "apply", "-f", "-", stdin=FERN)
    old = hashlib.sha256(FERN).hexdigest()
    newer = FERN + b"ram_mib: 256\n"
    assert box(layout.home, "apply", "-f", "-", "--if-match", old, stdin=newer).returncode == 0
    done = box(layout.home, "apply", "-f", "-", "--if-match", old, stdin=FERN)
    assert done.returncode == 1
    assert hashlib.sha256(newer).hexdigest() in text(done), "so that it can be given next time"
    assert (layout.boxes / "fern.box.yaml").read_bytes() == newer


def test_diff_says_what_would_change_and_whether_the_vm_is_replaced(layout: Layout) -> None:
    done = box(layout.home, "diff", "-f", "-", stdin=FERN)
    assert (done.returncode, "would be created" in text(done)) == (1, True)
    Store(layout).save(Record(name="fern", spec=Boxfile(name="fern", cpus=1)))
    done = box(layout.home, "diff", "-f", "-", stdin=FERN)
    assert (done.returncode, done.stdout) == (0, b"fern: no change\n")
    done = box(layout.home, "diff", "-f", "-", stdin=FERN + b"ram_mib: 256\n")
    assert done.returncode == 1
    assert "512 -> 256" in text(done)
    assert "VM would be replaced" in text(done)
    done = box(layout.home, "diff", "-f", "-", stdin=FERN + b"timeout_seconds: 9\n")
    assert done.returncode == 1
    assert "in place" in text(done)
    assert "replaced" not in text(done)


def test_diff_without_a_record_compares_with_the_file(layout: Layout) -> None:
    box(layout.home, "apply", "-f", "-", stdin=FERN)
    assert box(layout.home, "diff", "-f", "-", stdin=FERN).returncode == 0
    assert box(layout.home, "diff", "-f", "-", stdin=b"name: fern\ncpus: 3\n").returncode == 1


def test_delete_removes_the_file_only(layout: Layout, tmp_path: Path) -> None:
    box(layout.home, "apply", "-f", "-", stdin=FERN)
    done = box(layout.home, "delete", "fern")
    assert (done.returncode, done.stdout) == (0, b"fern deleted\n"), "it has no data"
    assert b"box prune --confirm" in done.stderr
    assert list(layout.boxes.iterdir()) == []
    done = box(layout.home, "delete", "fern")
    assert (done.returncode, "no sandbox" in text(done)) == (1, True)
    box(layout.home, "apply", "-f", "-", stdin=FERN)
    (tmp_path / "fern.yaml").write_bytes(FERN)
    assert box(layout.home, "delete", "-f", "fern.yaml").returncode == 0
    assert list(layout.boxes.iterdir()) == []
    assert box(layout.home, "delete").returncode == 2
    assert box(layout.home, "delete", "fern", "-f", "fern.yaml").returncode == 2


def test_delete_says_where_its_data_will_be(layout: Layout) -> None:
    box(layout.home, "apply", "-f", "-", stdin=FERN)
    disk.create(layout.disks("fern"), 16)
    done = box(layout.home, "delete", "fern")
    where = f"{layout.home}/disks/.deleted/fern-TIME"
    assert done.stdout.decode() == f"fern deleted; its /data will be in {where}\n"


@pytest.mark.parametrize(
    ("policy", "words"),
    [("", "its /data is erased in 60 s"), ("allow_erase = false\n", ".deleted/fern-TIME, since")],
)
def test_delete_says_that_the_spec_in_force_erases(layout: Layout, policy: str, words: str) -> None:
    spec = Boxfile(name="fern", data=Data(on_delete=OnDelete.erase))
    Store(layout).save(Record(name="fern", spec=spec))
    box(layout.home, "apply", "-f", "-", stdin=FERN)
    disk.create(layout.disks("fern"), 16)
    layout.policy.write_text(policy)
    assert words in text(box(layout.home, "delete", "fern"))


@pytest.mark.parametrize("command", [("diff",), ("apply",), ("apply", "--dry-run")])
def test_a_disk_is_not_shrunk_and_that_is_said_at_once(
    layout: Layout, command: tuple[str, ...]
) -> None:
    disk.create(layout.disks("fern"), 32)
    smaller = FERN + b"data:\n  size_mib: 16\n"
    done = box(layout.home, *command, "-f", "-", stdin=smaller)
    assert done.returncode == 2
    assert "stdin:4:13: data.size_mib: 16 is less than the 32 MiB" in text(done)
    assert list(layout.boxes.iterdir()) == []
    same = FERN + b"data:\n  size_mib: 32\n"
    assert box(layout.home, *command, "-f", "-", stdin=same).returncode != 2


def test_erasing_data_needs_the_controller_and_leaves_the_file_without(layout: Layout) -> None:
    box(layout.home, "apply", "-f", "-", stdin=FERN)
    done = box(layout.home, "delete", "fern", "--data")
    assert (done.returncode, "box controller" in text(done)) == (1, True)
    assert (layout.boxes / "fern.box.yaml").exists()


async def test_what_needs_the_controller_reaches_it(layout: Layout) -> None:
    async with serving(layout.socket) as service:

        async def ours(*arguments: str) -> tuple[int, str]:
            done = await asyncio.to_thread(lambda: box(layout.home, *arguments))
            return done.returncode, text(done)

        (layout.boxes / "agent.box.yaml").write_text("cpus: 1\n")
        status, shown = await ours("delete", "agent", "--data")
        assert (status, service.deleted) == (0, [("agent", True)])
        assert shown == "agent deleted\n", "without a disk nothing is said of data"
        assert (await ours("delete", "agent"))[0] == 0
        assert service.deleted[-1] == ("agent", False), "through the one that may confirm it"
        status, shown = await ours("delete", "down", "--data")
        assert (status, "allow_erase" in shown) == (1, True)
        status, shown = await ours("prune")
        assert service.confirmed is False
        assert shown.splitlines() == [
            "held back: over half of the Boxfiles vanished",
            "  agent",
            "  down",
            "box prune --confirm removes them",
        ]
        await ours("prune", "--confirm")
        assert service.confirmed
        status, shown = await ours("verify", "agent")
        assert (status, "1 of 1" in shown) == (0, True)
        reading = service.readings[0]
        service.readings.append(type(reading)(**{**reading.to_plain(), "ok": False, "got": "0"}))
        status, shown = await ours("verify", "agent")
        assert (status, "0 instead of 2" in shown) == (1, True)
        service.readings.clear()
        assert (await ours("verify", "agent"))[0] == 1, "no reading proves nothing"
        status, shown = await ours("version")
        assert "0.1" in shown
        assert "not running" not in (await ours("get"))[1]


@pytest.mark.parametrize("verb", [("verify", "fern"), ("prune",)])
def test_what_needs_the_controller_says_how_to_start_it(layout: Layout, verb: tuple[str]) -> None:
    done = box(layout.home, *verb)
    assert (done.returncode, "box controller" in text(done)) == (1, True)


def test_apply_reads_a_pipe(layout: Layout) -> None:
    reader, writer = os.pipe()
    os.write(writer, FERN)
    os.close(writer)
    os.set_inheritable(reader, True)
    done = box(layout.home, "apply", "-f", "/dev/stdin", stdin=FERN)
    os.close(reader)
    assert done.stdout == b"fern created\n"
