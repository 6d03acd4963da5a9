"""Deletion, the prune guard and sudden emptiness, with VMs that really run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tests.conftest import EVIDENCE
from tests.vm.harness import TINY, Home, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300)]


class Erasure:
    """`elm`, which is to be erased when deleted: it was, and its file came back, and it was again.

    A thread watches when its disk goes; that takes a minute, in which other tests run.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        self.disk = home.path / "disks" / "elm" / "base.raw"
        self.gone_after = 0.0  # seconds
        home.put("elm", TINY.replace("size_mib: 32", "size_mib: 32, on_delete: erase"))
        home.put("oak", "state: stopped\n")
        home.ready("elm")
        home.run("elm", "sh", "-c", "echo precious > /data/file; sync")
        home.remove("elm")
        until(lambda: home.vmms("elm") == [], 40, "stopped")
        time.sleep(5)
        assert self.disk.exists()
        home.put("elm", TINY.replace("size_mib: 32", "size_mib: 32, on_delete: erase"))
        home.ready("elm")
        assert home.run("elm", "cat", "/data/file").stdout == b"precious\n"
        began = time.monotonic()  # the minute begins with the removal, however long the VM stops
        home.remove("elm")
        until(lambda: home.vmms("elm") == [], 40, "stopped")
        self.watch = threading.Thread(target=self._watch, args=(began,))
        self.watch.start()

    def _watch(self, began: float) -> None:
        with contextlib.suppress(AssertionError):
            until(lambda: not self.disk.exists(), 90, "erased")
            self.gone_after = time.monotonic() - began


@pytest.fixture(scope="module")
def erasure(shared_home: Home) -> Iterator[Erasure]:
    EVIDENCE.watch(shared_home.path, "erasure")  # until the home is forgotten
    made = Erasure(shared_home)
    yield made
    made.watch.join()


def test_a_file_that_returns_saves_what_was_to_be_erased(erasure: Erasure) -> None:
    assert erasure.disk.exists()


def test_a_folder_that_goes_away_stops_nothing_not_even_over_a_restart(home: Home) -> None:
    home.put("oak")
    home.ready("oak")
    pid = home.pid("oak")
    away = home.path / "away"
    home.boxes.rename(away)
    until(lambda: home.condition("oak", "Valid") == ("False", "SourceMissing"), 40, "reported")
    home.stop(9)
    home.start()
    time.sleep(3)
    home.boxes.mkdir()  # an empty folder in its place is another folder
    home.look_again()
    time.sleep(4)
    assert home.vmms("oak") == [pid]
    home.boxes.rmdir()
    away.rename(home.boxes)
    until(lambda: home.condition("oak", "Valid") == ("True", "Accepted"), 40, "accepted again")
    assert home.vmms("oak") == [pid]


def test_a_mass_vanishing_is_held_until_it_is_confirmed(home: Home) -> None:
    names = ["ash", "elm", "fir", "oak"]
    for name in names:
        home.put(name, TINY if name == "ash" else "state: stopped\n")
    home.ready("ash")
    until(lambda: all((home.path / "state" / f"{n}.toml").exists() for n in names), 20, "known")
    kept = home.path / "kept"
    shutil.copytree(home.boxes, kept)
    for name in names[:3]:
        home.remove(name)
    until(lambda: b"ash" in home.box("prune").stdout, 40, "held")
    time.sleep(4)
    assert len(home.vmms("ash")) == 1
    for name in names[:3]:
        shutil.copy(kept / f"{name}.box.yaml", home.boxes)
    until(lambda: home.condition("ash", "Valid") == ("True", "Accepted"), 40, "back")
    assert b"ash" not in home.box("prune").stdout
    for name in names[:3]:
        home.remove(name)
    until(lambda: b"ash" in home.box("prune").stdout, 40, "held again")
    home.box("prune", "--confirm")
    home.nothing_left("ash")
    assert (home.path / "state" / "oak.toml").exists()


def test_a_lost_disk_is_reported_and_no_empty_one_takes_its_place(home: Home) -> None:
    home.put("oak")
    home.ready("oak")
    home.put("oak", TINY + "state: stopped\n")
    until(lambda: home.vmms("oak") == [], 60, "stopped")
    until(lambda: home.condition("oak", "Ready") == ("False", "Stopped"), 20, "reported")
    folder = home.path / "disks" / "oak"
    folder.rename(home.path / "moved")
    home.put("oak")
    until(lambda: home.condition("oak", "DataReady") == ("False", "DiskLost"), 40, "lost")
    assert not folder.exists()
    assert home.vmms("oak") == []
    (home.path / "moved").rename(folder)
    home.look_again()
    home.ready("oak")


def test_data_grows_under_a_running_vm_and_never_shrinks(home: Home) -> None:
    home.put("oak")
    home.ready("oak")
    pid = home.pid("oak")
    home.run("oak", "sh", "-c", "echo precious > /data/file")
    home.put("oak", TINY.replace("size_mib: 32", "size_mib: 96"))

    def size() -> int:
        done = home.run("oak", "df", "-k", "/data", check=False)
        return int(done.stdout.split()[-5]) if done.returncode == 0 else 0

    until(lambda: size() > 70_000, 60, "the guest sees the new size")
    assert home.pid("oak") == pid
    assert home.run("oak", "cat", "/data/file").stdout == b"precious\n"
    home.put("oak", TINY)
    until(
        lambda: home.condition("oak", "DataReady") == ("False", "DiskShrinkRefused"), 40, "refused"
    )
    assert os.stat(home.path / "disks" / "oak" / "base.raw").st_size == 96 << 20
    assert home.pid("oak") == pid


def test_a_clean_stop_keeps_what_was_not_synced(home: Home) -> None:
    home.put("oak")
    home.ready("oak")
    home.run("oak", "sh", "-c", "echo unsynced > /data/file")
    home.put("oak", TINY + "state: stopped\n")
    until(lambda: home.vmms("oak") == [], 60, "stopped")
    uid = home.report("oak").get("vmm", {}).get("uid")  # another report may follow at any time
    home.put("oak")
    found = home.ready("oak")
    assert home.run("oak", "cat", "/data/file").stdout == b"unsynced\n"
    assert uid is None or found["vmm"]["uid"] == uid


def test_a_ceiling_refuses_by_name_and_lets_the_rest_run(home: Home) -> None:
    (home.path / "policy.toml").write_text("max_ram_mib = 200\nallow_emulation = true\n")
    home.put("big", TINY.replace("192", "256"))
    home.put("oak")
    home.ready("oak")
    until(lambda: home.condition("big", "Valid") == ("False", "RefusedByPolicy"), 40, "refused")
    assert b"max_ram_mib" in home.box("describe", "big").stdout
    assert home.vmms("big") == []
    (home.path / "policy.toml").write_text("allow_emulation = false\n")
    home.look_again()
    until(lambda: home.vmms() == [], 60, "emulation is forbidden now")


def test_a_guest_that_is_still_waited_for_does_not_delay_its_deletion(home: Home) -> None:
    home.put("oak")
    (pid,) = until(lambda: home.vmms("oak"), 40, "a VMM")
    os.kill(pid, signal.SIGSTOP)  # before its guest can say anything
    until(lambda: home.condition("oak", "Ready") == ("False", "Starting"), 20, "being waited for")
    time.sleep(1)
    began = time.monotonic()
    home.box("delete", "oak")
    home.nothing_left("oak")
    assert time.monotonic() - began < 60  # a guest is waited for 90 s


def test_erase_waits_a_minute(erasure: Erasure) -> None:
    erasure.watch.join()
    assert 59 < erasure.gone_after < 90
    erasure.home.nothing_left("elm")
    assert not (erasure.home.path / "disks" / ".deleted").exists()
