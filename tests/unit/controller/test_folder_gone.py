"""Scans of what is gone, replaced or unreadable: unknown is never deleted."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from controller.sources.folder import (
    BOXFILE_MAX,
    FolderMissing,
    FolderScan,
    ScanCache,
    scan,
)
from tests.unit.controller.scanning import Scanner, settle, text

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
