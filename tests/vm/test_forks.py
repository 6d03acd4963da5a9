"""Forks: a sandbox that begins with another one's /data, and what becomes of either."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.vm.harness import READY, TINY, Home, until
from tests.vm.test_snapshots import start, stop, text_of, wrote

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300)]


def used(folder: Path) -> int:
    """Bytes of the host's disk, each file once however many names it has."""
    facts = {path.stat().st_ino: path.stat() for path in folder.rglob("*") if path.is_file()}
    return sum(each.st_blocks * 512 for each in facts.values())


def test_a_fork_goes_its_own_way_and_neither_can_lose_its_data(home: Home) -> None:
    start(home)
    wrote(home, "common")
    fill = "dd if=/dev/urandom of=/data/fill bs=1M count=20 && sync"
    home.run("oak", "sh", "-c", fill)
    refused = home.box("fork", "oak", "try", check=False)
    assert refused.returncode == 1 and b"state: stopped" in refused.stderr
    stop(home)
    before = used(home.path / "disks")
    home.box("fork", "oak", "try", "--wait", timeout=3 * READY)
    again = home.box("fork", "oak", "try", check=False)
    assert again.returncode == 1, "the Boxfile of a fork was overwritten"
    # nothing of the 20 MiB was copied: the guest has only mounted it
    assert used(home.path / "disks") - before < 4 << 20
    assert home.run("try", "cat", "/data/file").stdout == b"common\n"
    home.run("try", "sh", "-c", "echo fork > /data/file; rm /data/fill; sync")
    start(home)
    assert text_of(home) == "common"
    wrote(home, "parent")
    # The parent goes, with its data; the fork does not notice.
    home.box("delete", "oak")
    home.nothing_left("oak")
    for kept in (home.path / "disks" / ".deleted").iterdir():
        for path in kept.iterdir():
            path.unlink()
        kept.rmdir()
    home.put("try", _without_vm(home))
    until(lambda: not home.vmms("try"), 60, "try stopped")
    home.put("try", _with_vm(home))
    home.ready("try")
    assert home.run("try", "cat", "/data/file").stdout == b"fork\n"
    assert home.drifted("try") == []


def _text(home: Home) -> str:
    return (home.boxes / "try.box.yaml").read_text()


def _without_vm(home: Home) -> str:
    return _text(home) + "state: stopped\n"


def _with_vm(home: Home) -> str:
    return _text(home).replace("state: stopped\n", "")


def test_a_fork_waits_until_its_parent_has_stopped(home: Home) -> None:
    start(home)
    wrote(home, "late")
    home.put("try", f"{TINY}fork_of: oak\n")
    until(lambda: "has its disk open" in home.log(), 60, "it says what it waits for")
    assert not (home.path / "disks" / "try").exists()
    stop(home)
    home.ready("try")
    assert home.run("try", "cat", "/data/file").stdout == b"late\n"
    said = home.box("fork", "discard", "try").stdout
    assert b"erased in 60 s. What oak has stays" in said


def test_the_disk_of_a_fork_is_made_in_no_time(tmp_path: Path) -> None:
    """Of 2 GiB that are in use; the boot of its VM is another matter."""
    from reconcilers import chain, layers, snapshots
    from reconcilers import disk as disks

    parent = tmp_path / "disks" / "oak"
    disks.create(parent, 2048)
    size = 2048 << 20
    with open(parent / chain.BASE, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    before, began = used(tmp_path), time.monotonic()
    snapshots.fork(parent, parent.with_name("try"), 2048, snapshots.now())
    took = time.monotonic() - began
    grew = used(tmp_path) - before
    assert grew < 1 << 20, f"{grew} bytes more"
    print(f"fork of 2 GiB in use: {took * 1000:.1f} ms, {grew >> 10} KiB")
    found = layers.read(parent)
    assert found is not None and len(found[0].layers) == 2
    assert took < 60  # measured: milliseconds; a busy host may take its time to write
