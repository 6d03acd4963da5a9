"""Images, disks, sockets and launch records: the files of a sandbox on a real file system."""

from __future__ import annotations

import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from reconcilers import disk as disks
from reconcilers import launchrecord, sockets
from reconcilers.facts import MIB
from reconcilers.images.builtin import BUSYBOX
from reconcilers.images.store import Images
from reconcilers.images.verify import open_verified
from reconcilers.launchrecord import LaunchRecord
from specs.errors import ChannelError, HostError
from tests.unit.programs import PATH

BASE = "builtin:busybox"
needs_tools = pytest.mark.skipif(
    not (BUSYBOX.exists() and shutil.which("mksquashfs") and shutil.which("mke2fs", path=PATH)),
    reason="busybox-static, squashfs-tools or e2fsprogs is missing",
)


@needs_tools
def test_an_image_is_built_once_and_verified(tmp_path: Path) -> None:
    images = Images(tmp_path)
    assert images.observe("builtin:busybox") is None
    built = images.build("builtin:busybox")
    assert images.observe("builtin:busybox") == built
    os.close(open_verified(built))
    again = Images(tmp_path / "other").build("builtin:busybox")
    assert again.sha256 == built.sha256, "the build is not reproducible"


@needs_tools
def test_sandboxes_that_start_together_build_one_image(tmp_path: Path) -> None:
    images = Images(tmp_path)
    with ThreadPoolExecutor() as pool:
        built = [work.result() for work in [pool.submit(images.build, BASE) for _ in range(3)]]
    inodes = {os.stat(image.path).st_ino for image in built}
    assert inodes == {os.stat(built[0].path).st_ino}, "one replaced what another was given"


@needs_tools
def test_a_changed_image_is_refused(tmp_path: Path) -> None:
    built = Images(tmp_path).build("builtin:busybox")
    built.path.chmod(0o600)
    with open(built.path, "r+b") as file:
        file.seek(4096)
        file.write(b"changed")
    with pytest.raises(HostError, match="not the one that was built"):
        open_verified(built)


@needs_tools
def test_a_disk_is_private_grows_and_never_shrinks(tmp_path: Path) -> None:
    folder = tmp_path / "disks" / "oak"
    disks.create(folder, 64)
    made = disks.observe(folder)
    assert made is not None
    assert (made.size, made.format, made.mode, made.private) == (64 * MIB, "raw", 0o600, True)
    disks.grow(made, 128)
    disks.grow(made, 32)
    grown = disks.observe(folder)
    assert grown is not None
    assert grown.size == 128 * MIB


@needs_tools
def test_a_disk_with_another_owner_is_noticed_and_mended(tmp_path: Path) -> None:
    folder = tmp_path / "disks" / "oak"
    disks.create(folder, 16)
    made = disks.observe(folder)
    assert made is not None
    os.chmod(made.path, 0o644)
    if os.geteuid() == 0:
        os.chown(made.path, 1234, 1234)
    loose = disks.observe(folder)
    assert loose is not None
    assert not loose.private
    disks.mend(loose)
    mended = disks.observe(folder)
    assert mended is not None
    assert mended.private


@needs_tools
def test_a_disk_replaced_by_a_link_is_not_followed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("untouched")
    folder = tmp_path / "disks" / "oak"
    disks.create(folder, 16)
    (folder / disks.BASE).unlink()
    (folder / disks.BASE).symlink_to(canary)
    with pytest.raises(HostError, match="not a regular file"):
        disks.observe(folder)
    assert canary.read_text() == "untouched"


@needs_tools
def test_deleted_disks_never_overwrite_one_another(tmp_path: Path) -> None:
    deleted = tmp_path / "deleted"
    kept = set()
    for _ in range(3):
        disks.create(tmp_path / "disks" / "oak", 16)
        kept.add(disks.set_aside(tmp_path / "disks" / "oak", deleted, "20260101T000000Z"))
    assert len(kept) == 3
    assert all((path / disks.BASE).is_file() for path in kept)


@needs_tools
def test_a_garbled_chain_is_rebuilt_from_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "disks" / "oak"
    disks.create(folder, 16)
    for damage in ("garbage [", "a = " + "[" * 50_000, None):
        (folder / disks.CHAIN).unlink()
        if damage is not None:
            (folder / disks.CHAIN).write_text(damage)
        made = disks.observe(folder)
        assert made is not None
        assert (made.path, made.private) == (folder / disks.BASE, False)
        disks.mend(made)
        mended = disks.observe(folder)
        assert mended is not None
        assert mended.private


@needs_tools
def test_a_disk_says_whose_it_is_and_a_copy_says_another_name(tmp_path: Path) -> None:
    disks.create(tmp_path / "oak", 16)
    shutil.copytree(tmp_path / "oak", tmp_path / "oak-copy")
    assert disks.belongs_to(tmp_path / "oak") == "oak"
    assert disks.belongs_to(tmp_path / "oak-copy") == "oak"
    assert disks.belongs_to(tmp_path / "nothing") == ""


def test_half_made_and_half_erased_disks_are_swept(tmp_path: Path) -> None:
    for leftover in (".new-abc", ".erase-oak-1"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "file").write_text("x")
    (tmp_path / "oak").mkdir()
    disks.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["oak"]


@pytest.mark.parametrize("stale", ["file", "link", "socket"])
def test_a_stale_socket_path_is_replaced_and_nothing_followed(tmp_path: Path, stale: str) -> None:
    path, canary = tmp_path / "agent.sock", tmp_path / "canary"
    canary.write_text("untouched")
    if stale == "file":
        path.write_text("not a socket")
    elif stale == "link":
        path.symlink_to(canary)
    else:
        old = socket.socket(socket.AF_UNIX)
        old.bind(str(path))
        old.close()
    with sockets.listen(path):
        connection = sockets.connect(path)
        connection.close()
        assert path.lstat().st_mode & 0o777 == 0o600
    assert canary.read_text() == "untouched"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_connecting_to_what_is_no_socket_is_refused(tmp_path: Path, kind: str) -> None:
    path, canary = tmp_path / "agent.sock", tmp_path / "canary"
    with sockets.listen(tmp_path / "real.sock"):
        if kind == "file":
            path.write_text("")
        else:
            path.symlink_to(tmp_path / "real.sock")
        with pytest.raises(ChannelError):
            sockets.connect(path)
    assert not canary.exists()


def test_a_socket_path_over_the_limit_is_refused_early(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="107"):
        sockets.listen(tmp_path / ("x" * 120))


RECORD = LaunchRecord(
    key="k",
    token="00" * 32,
    accel="tcg",
    uid=70000,
    gid=70000,
    kernel_sha256="a",
    kernel_release="6.1",
    initramfs_sha256="b",
    image_sha256="c",
    host_boot_id="d",
    started="now",
    argv=("/usr/bin/qemu",),
    data_bytes=1,
    pid=5,
    start_time=6,
    exe=(1, 2),
)


def test_a_launch_record_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    launchrecord.write(path, RECORD)
    assert launchrecord.read(path) == RECORD
    with_variables = replace(RECORD, image_env=("PATH=/opt/bin", "A=b=c"))
    launchrecord.write(path, with_variables)
    assert launchrecord.read(path) == with_variables
    assert path.stat().st_mode & 0o777 == 0o600
    launchrecord.write(path, replace(RECORD, guest_boot_id="x"))
    read = launchrecord.read(path)
    assert read is not None
    assert read.claimed


@pytest.mark.parametrize(
    "garbage",
    ["", "{}", "[1]", '{"pid": "x"}', "\x00\xff", "{" * 5000, "[" * 100_000]
    + ['{"argv": [], "exe": [1e999, 1], "at_launch": []}'],
    ids=range(8),
)
def test_a_garbled_launch_record_counts_as_none(tmp_path: Path, garbage: str) -> None:
    path = tmp_path / "launch.json"
    path.write_text(garbage)
    assert launchrecord.read(path) is None
