"""Hints: every change gives one soon, our own scans give none, a replaced folder is followed."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.sources import watch as watch_module
from controller.sources.folder import ScanCache, scan
from controller.sources.watch import FolderWatch

QUIET = 0.6  # watchdog holds a lone "moved from" back for half a second


class Hints:
    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self._event.set()

    def settle(self) -> None:
        """Until none has come for a while: on a busy host the last ones come late."""
        limit = time.monotonic() + 30
        while self.wait(QUIET):
            assert time.monotonic() < limit, "hints without end"
        self.count = 0

    def wait(self, seconds: float = 30.0) -> bool:
        found = self._event.wait(seconds)
        self._event.clear()
        return found


@pytest.fixture
def hints() -> Hints:
    return Hints()


@pytest.fixture
def watched(boxes: Path, hints: Hints) -> Iterator[FolderWatch]:
    watch = FolderWatch(boxes, hints)
    watch.start()
    yield watch
    watch.stop()


def changes(boxes: Path, elsewhere: Path) -> list[tuple[str, Callable[[], object]]]:
    path = boxes / "a.yaml"

    def swap() -> None:
        (boxes / "..new").symlink_to("..v2")
        (boxes / "..new").rename(boxes / "..data")

    def move_in() -> None:
        (elsewhere / "b.yaml").write_bytes(b"x")
        (elsewhere / "b.yaml").rename(boxes / "b.yaml")

    return [
        ("created", lambda: path.write_bytes(b"1")),
        ("written", lambda: path.write_bytes(b"2")),
        ("moved in from outside", move_in),
        ("renamed", lambda: (boxes / "b.yaml").rename(boxes / "c.yaml")),
        ("moved out", lambda: (boxes / "c.yaml").rename(elsewhere / "c.yaml")),
        ("deleted", path.unlink),
        ("folder made", (boxes / "e").mkdir),
        ("file in a new folder", lambda: (boxes / "e" / "Boxfile").write_bytes(b"1")),
        ("file in a folder written", lambda: (boxes / "e" / "Boxfile").write_bytes(b"2")),
        ("ConfigMap swap", swap),
        ("folder removed", lambda: shutil.rmtree(boxes / "e")),
    ]


def test_every_kind_of_change_gives_a_hint(
    boxes: Path, hints: Hints, watched: FolderWatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for what, change in changes(boxes, elsewhere):
        hints.settle()
        change()
        assert hints.wait(), what


@pytest.mark.quiet
def test_a_save_gives_its_hint_at_once(boxes: Path, hints: Hints, watched: FolderWatch) -> None:
    path = boxes / "moss.yaml"
    path.write_bytes(b"0")
    delays = []
    for i in range(9):
        time.sleep(0.05)
        hints.wait(0)
        (boxes / ".moss.tmp").write_bytes(b"%d" % i)
        time.sleep(0.05)
        hints.wait(0)
        started = time.monotonic()
        (boxes / ".moss.tmp").rename(path)
        assert hints.wait()
        delays.append(time.monotonic() - started)
    assert sorted(delays)[4] < 0.05, delays


def test_our_own_scans_give_no_hint(boxes: Path, hints: Hints, watched: FolderWatch) -> None:
    for i in range(20):
        (boxes / f"box-{i}.yaml").write_bytes(b"cpus: 1\n")
    (boxes / "team.d").mkdir()
    (boxes / "team.d" / "a.yaml").write_bytes(b"cpus: 1\n")
    (boxes / "e").mkdir()
    (boxes / "e" / "Boxfile").write_bytes(b"cpus: 1\n")
    hints.settle()
    for _ in range(5):
        scan(boxes, ScanCache())
        watched.refresh()
    assert not hints.wait(QUIET)


def test_neighbours_of_the_folder_give_no_hint(
    boxes: Path, hints: Hints, watched: FolderWatch
) -> None:
    hints.settle()
    (boxes.parent / "state").mkdir()
    (boxes.parent / "state" / "a.toml").write_bytes(b"1")
    (boxes.parent / "boxes.old").write_bytes(b"1")
    assert not hints.wait(QUIET)


def test_a_removed_and_a_new_folder_are_noticed_and_followed(
    boxes: Path, hints: Hints, watched: FolderWatch
) -> None:
    hints.settle()
    boxes.rename(boxes.with_name("moved"))
    assert hints.wait()
    hints.settle()
    boxes.mkdir()
    assert hints.wait()
    hints.settle()
    (boxes / "a.yaml").write_bytes(b"1")
    assert hints.wait()
    hints.settle()
    (boxes.with_name("moved") / "b.yaml").write_bytes(b"1")
    assert not hints.wait(QUIET), "the old folder is still watched"


def test_a_folder_swapped_in_one_step_is_followed(
    boxes: Path, hints: Hints, watched: FolderWatch
) -> None:
    new = boxes.with_name("new")
    for i in range(3):
        new.mkdir()
        boxes.rename(boxes.with_name(f"old-{i}"))
        new.rename(boxes)
        hints.settle()
        (boxes / "a.yaml").write_bytes(b"1")
        assert hints.wait(), i


def test_a_folder_that_is_missing_at_the_start_is_found(tmp_path: Path, hints: Hints) -> None:
    folder = tmp_path / "late" / "boxes"
    watch = FolderWatch(folder, hints)
    watch.start()
    try:
        assert not watch.refresh()
        folder.mkdir(parents=True)
        watch.refresh()  # the timed scan: the parent did not exist either
        assert not watch.refresh()
        hints.settle()
        (folder / "a.yaml").write_bytes(b"1")
        assert hints.wait()
        shutil.rmtree(folder.parent)
        assert hints.wait()
        folder.mkdir(parents=True)
        watch.refresh()  # or the watch on the parent was faster
        hints.settle()
        (folder / "a.yaml").write_bytes(b"1")
        assert hints.wait()
    finally:
        watch.stop()


@pytest.mark.quiet
def test_a_storm_ends_with_one_more_hint(
    boxes: Path, hints: Hints, watched: FolderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "STORM_EVENTS", 50)
    for i in range(100):
        (boxes / "a.yaml").write_bytes(b"%d" % i)
    time.sleep(0.5)
    before = hints.count
    time.sleep(watch_module.STORM_SECONDS + 0.5)
    assert hints.count == before + 1
    time.sleep(watch_module.STORM_SECONDS + 0.5)
    assert hints.count == before + 1


def test_stopping_ends_the_hints_the_threads_and_the_descriptors(boxes: Path, hints: Hints) -> None:
    first = FolderWatch(boxes, hints)
    first.start()
    first.stop()  # the library keeps one inotify descriptor for the whole process
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        watch = FolderWatch(boxes, hints)
        watch.start()
        watch.stop()
    hints.settle()
    (boxes / "a.yaml").write_bytes(b"1")
    assert not hints.wait(QUIET)
    assert threading.active_count() <= threads  # one of an earlier test may have ended
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_hint_that_is_being_given_is_over_when_it_has_stopped(boxes: Path) -> None:
    """It would go to an event loop that is closed by then. A replaced folder's has no observer."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def hint() -> None:
        begun.set()
        may_end.wait(30)
        ended.set()

    watch = FolderWatch(boxes, hint)
    watch.start()
    watch._replaced()
    assert begun.wait(30)
    stopping = threading.Thread(target=watch.stop)
    stopping.start()
    stopping.join(0.5)
    assert stopping.is_alive()
    may_end.set()
    stopping.join(30)
    assert ended.is_set() and not stopping.is_alive()


def test_stopping_amid_changes_is_no_error(
    boxes: Path, hints: Hints, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            (boxes / "a.yaml").write_bytes(b"1")

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(60):
            watch = FolderWatch(boxes, hints)
            watch.start()
            assert hints.wait()
            watch.stop()
    finally:
        over.set()
        changing.join()
    assert caplog.messages == []


@pytest.mark.quiet
def test_an_idle_watch_uses_no_processor_time(
    boxes: Path, hints: Hints, watched: FolderWatch
) -> None:
    for i in range(100):
        (boxes / f"box-{i}").mkdir()
    hints.settle()
    before = time.process_time()
    time.sleep(2.0)
    assert time.process_time() - before < 0.02


def test_a_folder_made_anew_with_the_same_inode_number_is_watched_again(
    boxes: Path, hints: Hints
) -> None:
    """ext4 gives a deleted folder's inode number to the next one at once."""
    watch = FolderWatch(boxes, hints)
    watch.start()
    try:
        shutil.rmtree(boxes)
        boxes.mkdir()
        hints.settle()
        watch.refresh()
        hints.settle()
        (boxes / "a.yaml").write_bytes(b"1")
        assert hints.wait()
    finally:
        watch.stop()
