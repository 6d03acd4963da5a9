"""What the guests that run mean for the mounts of another sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.entry import Entry
from controller.inventory import Inventory
from controller.lockfile import ControllerLock
from controller.loop import Controller
from controller.mountrules import look
from controller.records import Record
from controller.wiring import build_host
from reconcilers.launchrecord import HelperRecord, LaunchRecord
from reconcilers.layout import Layout
from reconcilers.live import Live
from specs.boxfile import Boxfile
from specs.config import Config


def running(writes: Path) -> Live:
    """A VM one of whose helpers has `writes` open."""
    found = writes.stat()
    helper = HelperRecord(
        "share", 0, 1, 1, (1, 1), (), str(writes), (found.st_dev, found.st_ino), writable=True
    )
    texts = ("key", "00", "tcg", "sha", "release", "sha", "sha", "boot", "now")
    key, token, accel, kernel, release, initramfs, image, boot, started = texts
    return Live(
        LaunchRecord(
            key=key,
            token=token,
            accel=accel,
            uid=1,
            gid=1,
            kernel_sha256=kernel,
            kernel_release=release,
            initramfs_sha256=initramfs,
            image_sha256=image,
            host_boot_id=boot,
            started=started,
            argv=(),
            data_bytes=1,
            helpers=(helper,),
        )
    )


@pytest.mark.parametrize("below", ["", "inner"])
async def test_a_directory_that_a_guest_writes_is_known_where_it_was_moved_to(
    layout: Layout, tmp_path: Path, below: str
) -> None:
    shared, moved = tmp_path / "shared", tmp_path / "moved"
    (shared / "inner").mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    writer = Boxfile.model_validate(
        {"name": "va", "mounts": [{"host": str(shared), "guest": "/s", "mode": "rw"}]}
    )
    reader = Boxfile.model_validate(
        {
            "name": "vb",
            "isolation": "standard",  # under strict, an ordinary user shares what others may read
            "mounts": [{"host": str(moved / below), "guest": "/s"}],
        }
    )
    with ControllerLock.acquire(layout.lock) as lock:
        controller = Controller(layout, build_host(layout, Config()), lock)
        inventory: Inventory = controller.inventory
        entry = inventory.entries["va"] = Entry(Record(name="va", spec=writer))
        entry.live = running(shared)
        shared.rename(moved)
        shared.symlink_to(elsewhere)
        _, refused = look(controller._host, inventory, "vb", reader)
        assert [each.why for each in refused] == [
            "its path leads through a directory that the guest of va can write"
            if below
            else "the guest of va can write it"
        ]
        entry.live = None
        assert look(controller._host, inventory, "vb", reader)[1] == ()
