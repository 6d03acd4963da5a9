"""Scans while files are saved, swapped and switched, as editors and feeders do it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from controller.sources.folder import CONSISTENT_TRIES
from tests.unit.controller.scanning import Scanner, settle, text

# -- W2: ConfigMap -------------------------------------------------------------------------------


def version(boxes: Path, name: str, data: bytes) -> None:
    (boxes / name).mkdir()
    (boxes / name / "fern.yaml").write_bytes(data)


def switch(boxes: Path, to: str) -> None:
    (boxes / "..data_tmp").symlink_to(to)
    (boxes / "..data_tmp").rename(boxes / "..data")


def test_w2_a_configmap_swap_is_one_update_then_none(boxes: Path, look: Scanner) -> None:
    version(boxes, "..v1", text(ram_mib=256))
    (boxes / "..data").symlink_to("..v1")
    (boxes / "fern.yaml").symlink_to("..data/fern.yaml")
    seen = [look().files["fern"]]
    version(boxes, "..v2", text(ram_mib=512))
    seen.append(look().files["fern"])
    switch(boxes, "..v2")
    seen.append(look().files["fern"])
    version(boxes, "..v3", text(ram_mib=512))
    switch(boxes, "..v3")
    found = look()
    seen.append(found.files["fern"])
    digests = [source.digest for source in seen]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert {source.path for source in seen} == {"fern.yaml"}
    assert set(found.files) == {"fern"} and not found.problems and not found.twins
    (boxes / "..v1" / "fern.yaml").unlink()
    (boxes / "..v1").rmdir()
    assert look().files["fern"].digest == digests[3]


def test_w2_the_sandbox_is_present_in_every_moment_of_many_swaps(
    boxes: Path, look: Scanner
) -> None:
    for i in range(2):
        version(boxes, f"..v{i}", text(ram_mib=256 + i))
    (boxes / "..data").symlink_to("..v0")
    (boxes / "fern.yaml").symlink_to("..data/fern.yaml")
    code = (
        "import itertools, os\n"
        "for i in itertools.count():\n"
        "    os.symlink(f'..v{i % 2}', '..data_tmp')\n"
        "    os.rename('..data_tmp', '..data')\n"
    )
    swapper = subprocess.Popen([sys.executable, "-c", code], cwd=boxes)
    seen: set[bytes] = set()
    try:
        deadline = time.monotonic() + 20
        scans = 0
        while (scans < 500 or len(seen) < 2) and time.monotonic() < deadline:
            found = look()
            assert set(found.files) == {"fern"} and not found.problems, found
            seen.add(found.files["fern"].data)
            scans += 1
    finally:
        swapper.kill()
        swapper.wait()
    assert seen == {text(ram_mib=256), text(ram_mib=257)}


def test_a_feeder_is_switched_as_a_whole(boxes: Path, look: Scanner) -> None:
    for i in range(2):
        (boxes / f".feed-{i}").mkdir()
        for name in ("a", "b", f"only{i}"):
            (boxes / f".feed-{i}" / f"{name}.yaml").write_bytes(text(cpus=i + 1))
    (boxes / "team.d").symlink_to(".feed-0")
    found = look()
    assert set(found.files) == {"a", "b", "only0"}
    assert found.files["a"].path == "team.d/a.yaml"
    (boxes / ".new").symlink_to(".feed-1")
    (boxes / ".new").rename(boxes / "team.d")
    found = look()
    assert set(found.files) == {"a", "b", "only1"}
    assert {source.data for source in found.files.values()} == {text(cpus=2)}


def test_a_scan_never_mixes_two_versions_of_a_feeder(
    boxes: Path, look: Scanner, tmp_path: Path
) -> None:
    versions = []
    for i in range(2):
        (boxes / f".feed-{i}").mkdir()
        for name in (*(f"box-{n}" for n in range(30)), f"only{i}"):
            (boxes / f".feed-{i}" / f"{name}.yaml").write_bytes(text(cpus=i + 1))
        versions.append(frozenset((*(f"box-{n}" for n in range(30)), f"only{i}")))
    (boxes / "team.d").symlink_to(".feed-0")
    code = (
        "import itertools, os, time\n"
        "for i in itertools.count():\n"
        "    os.symlink(f'.feed-{i % 2}', '.new')\n"
        "    os.rename('.new', 'team.d')\n"
        "    os.pwrite(1, i.to_bytes(8, 'little'), 0)\n"
        "    time.sleep(0.005)\n"
    )
    count = tmp_path / "switches"
    count.write_bytes(bytes(8))
    with open(count, "r+b") as told:
        switcher = subprocess.Popen([sys.executable, "-c", code], cwd=boxes, stdout=told)

    def switches() -> int:
        """How many there were, with one that was made and is not told yet."""
        while True:
            told = int.from_bytes(count.read_bytes(), "little")
            untold = os.readlink(boxes / "team.d") != f".feed-{told % 2}"
            if told == int.from_bytes(count.read_bytes(), "little"):
                return told + untold

    seen: set[frozenset[str]] = set()
    try:
        deadline = time.monotonic() + 20
        scans = 0
        while (scans < 400 or len(seen) < 2) and time.monotonic() < deadline:
            before = switches()
            found = look()
            mixed = len({source.data for source in found.files.values()}) > 1
            # One that never rests, as on a busy host, is taken as it comes.
            assert not mixed or switches() - before >= CONSISTENT_TRIES
            if mixed:
                continue
            seen.add(frozenset(found.files))
            scans += 1
    finally:
        switcher.kill()
        switcher.wait()
    assert seen == set(versions)


# -- W3: editors ---------------------------------------------------------------------------------


def test_w3_renaming_over_the_file_updates_and_never_deletes(
    boxes: Path, look: Scanner, tmp_path: Path
) -> None:
    (boxes / "moss.yaml").write_bytes(text(cpus=1))
    look()
    for i in range(5):
        folder = tmp_path if i == 4 else boxes
        (folder / ".moss.tmp").write_bytes(text(cpus=2 + i))
        assert look().files["moss"].data == text(cpus=1 + i)
        (folder / ".moss.tmp").rename(boxes / "moss.yaml")
        found = look()
        assert found.files["moss"].data == text(cpus=2 + i)
        assert found.files["moss"].path == "moss.yaml"


def test_w3_writing_in_place_shows_each_stage_as_present(boxes: Path, look: Scanner) -> None:
    path = boxes / "moss.yaml"
    path.write_bytes(text(cpus=1))
    look()
    with path.open("wb", buffering=0) as stream:
        assert look().files["moss"].data == b""
        stream.write(b"cpus: [")
        assert look().files["moss"].data == b"cpus: ["
        stream.write(b"1]\n")
    found = look()
    assert found.files["moss"].data == b"cpus: [1]\n"
    assert "moss" in found.present


def test_a_change_of_equal_size_within_one_clock_tick_is_seen(boxes: Path, look: Scanner) -> None:
    path = boxes / "moss.yaml"
    for i in range(300):
        path.write_bytes(text(cpus=i % 10))
        facts = path.stat()
        # An editor that restores the times, too: only the change time remains.
        os.utime(path, ns=(0, 0))
        assert look().files["moss"].data == text(cpus=i % 10), facts


def test_a_settled_file_is_read_once_and_again_after_any_change(boxes: Path, look: Scanner) -> None:
    path = boxes / "moss.yaml"
    path.write_bytes(text(cpus=1))
    settle(boxes, look.cache)
    reads = look.cache.reads
    first = look()
    assert look().files["moss"] is first.files["moss"]
    assert look.cache.reads == reads
    os.utime(path, ns=(1, 1))
    assert look().files["moss"].digest == first.files["moss"].digest
    assert look.cache.reads == reads + 1
    settle(boxes, look.cache)
    path.write_bytes(text(cpus=2))
    os.utime(path, ns=(1, 1))
    assert look().files["moss"].data == text(cpus=2)


def test_a_file_is_settled_only_after_two_quiet_seconds(boxes: Path, look: Scanner) -> None:
    (boxes / "moss.yaml").write_bytes(text(cpus=1))
    look()
    assert not look.cache.entries["moss.yaml"].settled
    time.sleep(2.1)
    look()
    assert look.cache.entries["moss.yaml"].settled
