"""Scans of a real folder: saves, swaps, links, junk and everything that is no file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.sources.folder import (
    BOXFILE_MAX,
    FolderMissing,
    FolderScan,
    ScanCache,
    scan,
)
from reconcilers.confinement import syscalls

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    folder = tmp_path / "boxes"
    folder.mkdir()
    return folder


class Scanner:
    """Scans again and again as the controller does: one cache, the recorded sources fed back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = ScanCache()
        self.recorded: dict[str, str] = {}

    def __call__(self) -> FolderScan:
        found = scan(self.folder, self.cache, self.recorded)
        assert isinstance(found, FolderScan), found
        self.recorded |= {name: source.path for name, source in found.files.items()}
        return found


@pytest.fixture
def look(boxes: Path) -> Scanner:
    return Scanner(boxes)


def text(**fields: object) -> bytes:
    return "".join(f"{key}: {value}\n" for key, value in fields.items()).encode()


def settle(folder: Path, cache: ScanCache) -> None:
    """Make the cache believe that every file was still when it was read, without waiting 2 s."""
    scan(folder, cache)
    for entry in cache.entries.values():
        entry.settled = True


# -- what declares a sandbox ----------------------------------------------------------------------


def test_every_documented_file_name_declares_its_sandbox(boxes: Path, look: Scanner) -> None:
    (boxes / "a.box.yaml").write_bytes(b"cpus: 1\n")
    (boxes / "b.yaml").write_bytes(b"cpus: 2\n")
    (boxes / "c.yml").write_bytes(b"cpus: 3\n")
    (boxes / "d.box.toml").write_bytes(b"cpus = 4\n")
    (boxes / "e").mkdir()
    (boxes / "e" / "Boxfile").write_bytes(b"cpus: 5\n")
    (boxes / "feeder.d").mkdir()
    (boxes / "feeder.d" / "f.yaml").write_bytes(b"cpus: 6\n")
    found = look()
    assert {name: file.path for name, file in found.files.items()} == {
        "a": "a.box.yaml",
        "b": "b.yaml",
        "c": "c.yml",
        "d": "d.box.toml",
        "e": "e/Boxfile",
        "f": "feeder.d/f.yaml",
    }
    assert found.files["e"].data == b"cpus: 5\n"
    assert found.files["e"].digest == hashlib.sha256(b"cpus: 5\n").hexdigest()
    assert not found.problems and not found.twins and not found.broken


def test_other_files_and_nested_folders_are_not_sources(boxes: Path, look: Scanner) -> None:
    for name in ("README.md", "Makefile", "pyproject.toml", "agent", "a.yaml.bak", "b.json"):
        (boxes / name).write_bytes(b"cpus: 1\n")
    (boxes / "feeder.d" / "sub").mkdir(parents=True)
    (boxes / "feeder.d" / "sub" / "Boxfile").write_bytes(b"cpus: 1\n")
    (boxes / ".hidden").mkdir()
    (boxes / ".hidden" / "Boxfile").write_bytes(b"cpus: 1\n")
    (boxes / "deep" / "er").mkdir(parents=True)
    (boxes / "deep" / "er" / "Boxfile").write_bytes(b"cpus: 1\n")
    found = look()
    assert not found.files and not found.problems


def test_a_file_whose_name_is_no_sandbox_name_is_reported(boxes: Path, look: Scanner) -> None:
    for name in ("Agent.yaml", "a_b.box.yaml", "x.y.yaml", "-.yml", "e\x1bvil.yaml"):
        (boxes / name).write_bytes(b"cpus: 1\n")
    (boxes / os.fsdecode(b"\xff.yaml")).write_bytes(b"cpus: 1\n")
    found = look()
    assert not found.files
    assert len(found.problems) == 6
    assert all(path.isprintable() and message for path, message in found.problems)


def test_a_name_inside_that_differs_is_left_to_the_parser(boxes: Path, look: Scanner) -> None:
    (boxes / "a.yaml").write_bytes(b"name: b\n")
    assert look().files["a"].data == b"name: b\n"


def test_a_file_of_a_mebibyte_is_refused_unread(boxes: Path, look: Scanner) -> None:
    (boxes / "a.yaml").write_bytes(b"#" * 1024 * 1024)
    (boxes / "b.yaml").write_bytes(b"#" * BOXFILE_MAX)
    found = look()
    assert set(found.files) == {"b"}
    assert "larger than 256 KiB" in found.broken["a"]
    assert "a" in found.present


def test_an_empty_file_is_present(boxes: Path, look: Scanner) -> None:
    (boxes / "a.yaml").write_bytes(b"")
    assert look().files["a"].data == b""


# -- W6: backups, hidden files, twins, special files -----------------------------------------------


@pytest.fixture
def opened_names(boxes: Path) -> Iterator[list[str]]:
    """Every name in the folder that anybody opens, as inotify reports it."""
    with record_opens(boxes) as seen:
        yield seen


@contextlib.contextmanager
def record_opens(folder: Path) -> Iterator[list[str]]:
    seen: list[str] = []
    in_open = 0x20  # inotify(7)
    descriptor = syscalls.inotify_watch(str(folder), in_open)
    stop_read, stop_write = os.pipe()

    def read() -> None:
        while True:
            ready, _, _ = select.select([descriptor, stop_read], [], [])
            if descriptor in ready:
                data = os.read(descriptor, 65536)
                while data:
                    length = int.from_bytes(data[12:16], sys.byteorder)
                    seen.append(os.fsdecode(data[16 : 16 + length].rstrip(b"\0")))
                    data = data[16 + length :]
            elif ready:
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        os.write(stop_write, b"x")
        reader.join()
        for each in (descriptor, stop_read, stop_write):
            os.close(each)


def test_w6_junk_is_ignored_unopened_and_the_twin_is_named(
    boxes: Path, look: Scanner, opened_names: list[str]
) -> None:
    (boxes / "pine.yaml").write_bytes(text(cpus=1))
    first = look()
    (boxes / ".pine.yaml.swp").write_bytes(b"b0VIM 9.0\0\xff")
    (boxes / "pine.yaml~").write_bytes(text(cpus=9))
    (boxes / "#pine.yaml#").write_bytes(text(cpus=9))
    (boxes / ".#pine.yaml").symlink_to("me@host.1234:5678")
    (boxes / "pine.yaml.bak").write_bytes(text(cpus=9))
    os.mkfifo(boxes / "x.yaml")
    (boxes / "y.yaml").mkdir()
    (boxes / "y.yaml" / "Boxfile").write_bytes(text(cpus=9))
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(boxes)  # a socket path is at most 107 bytes
    try:
        listener.bind("s.yaml")
    finally:
        os.chdir(here)
    time.sleep(0.1)
    opened_names.clear()
    started = time.monotonic()
    found = look()
    assert time.monotonic() - started < 1  # a FIFO that is opened for reading blocks
    assert set(found.files) == {"pine"} and not found.broken and not found.problems
    (boxes / "pine.yml").write_bytes(text(cpus=2))
    time.sleep(0.1)
    for _ in range(5):
        found = look()
        assert found.twins == {"pine": ("pine.yaml", "pine.yml")}
        assert found.files["pine"] == first.files["pine"]
    time.sleep(0.1)
    opened = {name for name in opened_names if name}
    assert "pine.yaml" in opened  # else the watch proves nothing
    assert not opened & {"x.yaml", "s.yaml", ".pine.yaml.swp", "pine.yaml~", "pine.yaml.bak"}
    listener.close()


def test_a_fifo_behind_a_link_or_put_in_place_of_a_file_is_never_opened(
    boxes: Path, look: Scanner, opened_names: list[str]
) -> None:
    (boxes / "a.yaml").write_bytes(text(cpus=1))
    look()
    (boxes / "a.yaml").unlink()
    os.mkfifo(boxes / "a.yaml")
    os.mkfifo(boxes / ".pipe")
    (boxes / "b.yaml").symlink_to(".pipe")
    (boxes / "c.yaml").symlink_to("/dev/zero")
    time.sleep(0.1)  # until the opens of the first look have been told
    opened_names.clear()
    found = look()
    time.sleep(0.1)
    assert not found.files
    assert set(found.broken) == {"a", "b", "c"}
    assert not {name for name in opened_names if name}


def test_the_recorded_twin_wins_even_when_it_is_not_first(boxes: Path, look: Scanner) -> None:
    (boxes / "pine.yml").write_bytes(text(cpus=2))
    look()
    (boxes / "pine.box.yaml").write_bytes(text(cpus=1))
    found = look()
    assert found.files["pine"].path == "pine.yml"
    assert found.twins == {"pine": ("pine.yml", "pine.box.yaml")}
    (boxes / "pine.yml").unlink()
    found = look()
    assert found.files["pine"].path == "pine.box.yaml" and not found.twins


def test_an_unreadable_winner_does_not_hand_over_to_its_twin(boxes: Path, look: Scanner) -> None:
    (boxes / "pine.yaml").write_bytes(text(cpus=1))
    look()
    (boxes / "pine.yml").write_bytes(text(cpus=2))
    (boxes / "pine.yaml").unlink()
    (boxes / "pine.yaml").symlink_to("nowhere")
    found = look()
    assert "pine" not in found.files and "nothing" in found.broken["pine"]


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


def test_a_scan_never_mixes_two_versions_of_a_feeder(boxes: Path, look: Scanner) -> None:
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
        "    time.sleep(0.005)\n"
    )
    switcher = subprocess.Popen([sys.executable, "-c", code], cwd=boxes)
    seen: set[frozenset[str]] = set()
    try:
        deadline = time.monotonic() + 20
        scans = 0
        while (scans < 400 or len(seen) < 2) and time.monotonic() < deadline:
            found = look()
            assert len({source.data for source in found.files.values()}) == 1
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


# -- links ---------------------------------------------------------------------------------------


def test_links_that_leave_the_folder_are_reported_and_unread(
    boxes: Path, look: Scanner, tmp_path: Path, opened_names: list[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary.yaml").write_bytes(b"secret")
    (outside / "Boxfile").write_bytes(b"secret")
    (boxes / "a.yaml").symlink_to(outside / "canary.yaml")
    (boxes / "b.yaml").symlink_to("../outside/canary.yaml")
    (boxes / ".way").symlink_to("..")
    (boxes / "c.yaml").symlink_to(".way/outside/canary.yaml")
    (boxes / "d").symlink_to("../outside")
    (boxes / "e.d").symlink_to(outside)
    (boxes / "f.yaml").symlink_to("/proc/self/root/etc/passwd")
    with record_opens(outside) as seen:
        found = look()
        time.sleep(0.1)
    assert not found.files
    assert {path for path, _ in found.problems} == {
        "a.yaml",
        "b.yaml",
        "c.yaml",
        "d",
        "e.d",
        "f.yaml",
    }
    assert all("OutsideFolder" in message for _, message in found.problems)
    assert not [name for name in seen if name]


def test_links_beneath_the_folder_count_as_their_target(boxes: Path, look: Scanner) -> None:
    (boxes / ".store").mkdir()
    (boxes / ".store" / "real").write_bytes(text(cpus=1))
    (boxes / "team.d").mkdir()
    (boxes / "a.yaml").symlink_to(".store/real")
    (boxes / "b.yaml").symlink_to("a.yaml")
    (boxes / "team.d" / "c.yaml").symlink_to("../.store/real")
    (boxes / ".store" / "Boxfile").write_bytes(text(cpus=2))
    (boxes / "d").symlink_to(".store")
    found = look()
    assert {name: source.path for name, source in found.files.items()} == {
        "a": "a.yaml",
        "b": "b.yaml",
        "c": "team.d/c.yaml",
        "d": "d/Boxfile",
    }
    (boxes / ".store" / "real").write_bytes(text(cpus=3))
    assert {look().files[name].data for name in "abc"} == {text(cpus=3)}


def test_loops_and_dangling_links_are_broken_not_deleted(boxes: Path, look: Scanner) -> None:
    for name in "abc":
        (boxes / f"{name}.yaml").write_bytes(text(cpus=1))
    look()
    for name, target in (("a", "b.yaml"), ("b", "a.yaml"), ("c", "nowhere")):
        (boxes / f"{name}.yaml").unlink()
        (boxes / f"{name}.yaml").symlink_to(target)
    found = look()
    assert not found.files
    assert "circle" in found.broken["a"] and "nothing" in found.broken["c"]
    assert found.present == {"a", "b", "c"}
    assert len(found.problems) == 3


def test_a_folder_that_becomes_a_link_to_the_outside_is_not_followed(
    boxes: Path, look: Scanner, tmp_path: Path
) -> None:
    (boxes / "a").mkdir()
    (boxes / "a" / "Boxfile").write_bytes(text(cpus=1))
    look()
    settle(boxes, look.cache)
    (boxes / "a").rename(tmp_path / "a")
    (boxes / "a").symlink_to(tmp_path / "a")
    found = look()
    assert not found.files and "OutsideFolder" in found.broken["a"]


# -- gone, replaced, unreadable -------------------------------------------------------------------


def test_a_deleted_file_is_gone_and_nothing_else(boxes: Path, look: Scanner) -> None:
    (boxes / "a.yaml").write_bytes(text(cpus=1))
    (boxes / "e").mkdir()
    (boxes / "e" / "Boxfile").write_bytes(text(cpus=1))
    look()
    (boxes / "a.yaml").unlink()
    (boxes / "e" / "Boxfile").unlink()
    found = look()
    assert not found.present and not found.problems
    assert not look.cache.entries


def test_a_file_replaced_by_a_folder_or_device_is_broken_not_deleted(
    boxes: Path, look: Scanner
) -> None:
    (boxes / "a.yaml").write_bytes(text(cpus=1))
    (boxes / "e").mkdir()
    (boxes / "e" / "Boxfile").write_bytes(text(cpus=1))
    look()
    (boxes / "a.yaml").unlink()
    (boxes / "a.yaml").mkdir()
    (boxes / "e" / "Boxfile").unlink()
    (boxes / "e" / "Boxfile").mkdir()
    found = look()
    assert not found.files
    assert set(found.broken) == {"a", "e"}
    assert {path for path, _ in found.problems} == {"a.yaml", "e/Boxfile"}


def test_a_feeder_that_cannot_be_followed_keeps_its_sandboxes(boxes: Path, look: Scanner) -> None:
    (boxes / ".feed").mkdir()
    (boxes / ".feed" / "a.yaml").write_bytes(text(cpus=1))
    (boxes / "team.d").symlink_to(".feed")
    look()
    (boxes / ".feed").rename(boxes / ".gone")
    found = look()
    assert set(found.broken) == {"a"}
    assert found.problems
    (boxes / "team.d").unlink()
    assert not look().present


def test_one_unreadable_file_is_reported_and_hides_no_other(boxes: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("root alone may drop to another user")
    for folder in (tmp_path, boxes):
        folder.chmod(0o755)
    (boxes / "a.yaml").write_bytes(text(cpus=1))
    (boxes / "b.yaml").write_bytes(text(cpus=1))
    (boxes / "a.yaml").chmod(0o600)
    (boxes / "e").mkdir(mode=0o700)
    (boxes / "e" / "Boxfile").write_bytes(text(cpus=1))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # an ordinary user, in a process of its own
        try:
            for ancestor in reversed(boxes.parents):
                descriptor = os.open(ancestor, os.O_PATH)
                os.close(descriptor)
            inside = os.open(boxes, os.O_RDONLY)
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.fchdir(inside)
            found = scan(Path("."), ScanCache(resolved=Path(".")), {"e": "e/Boxfile"})
            assert isinstance(found, FolderScan), found
            os.write(writer, repr((sorted(found.files), sorted(found.broken))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "(['b'], ['a', 'e'])"
    os.waitpid(child, 0)


def test_a_missing_folder_is_no_empty_folder(boxes: Path, look: Scanner) -> None:
    (boxes / "a.yaml").write_bytes(text(cpus=1))
    first = look()
    boxes.rename(boxes.with_name("moved"))
    missing = scan(boxes, look.cache)
    assert isinstance(missing, FolderMissing) and str(boxes) in missing.reason
    boxes.write_bytes(b"a file")
    assert isinstance(scan(boxes, look.cache), FolderMissing)
    boxes.unlink()
    boxes.mkdir()
    assert look().identity != first.identity
    boxes.rmdir()
    boxes.with_name("moved").rename(boxes)
    assert look() == first


def test_a_folder_that_is_a_symlink_is_resolved_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.yaml").write_bytes(text(cpus=1))
    link = tmp_path / "boxes"
    link.symlink_to("one")
    look = Scanner(link)
    assert set(look().files) == {"one"}
    link.unlink()
    link.symlink_to("two")
    assert set(look().files) == {"one"}
    (tmp_path / "one").rename(tmp_path / "gone")
    (tmp_path / "one").symlink_to("two")
    assert isinstance(scan(link, look.cache), FolderMissing)


def test_a_folder_that_appears_later_is_found(tmp_path: Path) -> None:
    cache = ScanCache()
    folder = tmp_path / "boxes"
    assert isinstance(scan(folder, cache), FolderMissing)
    folder.symlink_to("boxes")
    assert isinstance(scan(folder, cache), FolderMissing)
    folder.unlink()
    folder.mkdir()
    assert isinstance(scan(folder, cache), FolderScan)


def test_another_file_system_over_the_folder_has_another_identity(
    boxes: Path, look: Scanner
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    (boxes / "a.yaml").write_bytes(text(cpus=1))
    first = look()
    subprocess.run(["mount", "-t", "tmpfs", "boxtest", str(boxes)], check=True)
    try:
        covered = look()
        assert not covered.files
        assert covered.identity != first.identity
    finally:
        subprocess.run(["umount", "--lazy", str(boxes)], check=True)
    assert look() == first


def test_scans_leak_no_descriptor(boxes: Path, look: Scanner) -> None:
    (boxes / "a.yaml").write_bytes(text(cpus=1))
    (boxes / "b.yaml").symlink_to("/etc/passwd")
    (boxes / "c.yaml").symlink_to("a.yaml")
    (boxes / "big.yaml").write_bytes(b"#" * (BOXFILE_MAX + 1))
    os.mkfifo(boxes / ".p")
    (boxes / "d.yaml").symlink_to(".p")
    (boxes / "t.d").mkdir()
    (boxes / "u.d").symlink_to("nowhere")
    look()
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(20):
        look()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_500_unchanged_files_cost_little_and_are_not_read(boxes: Path, look: Scanner) -> None:
    for i in range(500):
        (boxes / f"box-{i:03}.box.yaml").write_bytes(text(cpus=1, state="stopped"))
    settle(boxes, look.cache)
    look()
    reads = look.cache.reads
    times = []
    for _ in range(9):
        started = time.process_time()
        found = look()
        times.append(time.process_time() - started)
    assert len(found.files) == 500
    assert look.cache.reads == reads
    print(f"scan of 500 unchanged files: {sorted(times)[4] * 1000:.2f} ms")
    # Ten times what it takes on an idle machine: this is a bound against reading, not a benchmark.
    assert min(times) < 0.04, times
