"""One controller per home and per folder, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.lockfile import AlreadyRunning, ControllerLock, holder
from specs.errors import HostError

REPOSITORY = Path(__file__).resolve().parents[3]
CONTROLLER = """
import sys, time
from pathlib import Path
from controller.lockfile import ControllerLock
lock = ControllerLock.acquire(Path(sys.argv[1]))
lock.lock_folder(Path(sys.argv[2]))
print("locked", flush=True)
time.sleep(60)
"""


def controller(lock: Path, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(lock), str(folder)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_locked(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"


def end(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    process.send_signal(number)
    process.communicate(timeout=60)


def test_a_second_controller_on_the_home_is_refused_with_the_first_ones_pid(
    tmp_path: Path, boxes: Path
) -> None:
    path = tmp_path / "controller.lock"
    assert holder(path) is None
    first = controller(path, boxes)
    try:
        wait_until_locked(first)
        assert holder(path) == first.pid
        with pytest.raises(AlreadyRunning) as caught:
            ControllerLock.acquire(path)
        assert caught.value.pid == first.pid
        assert f"process {first.pid}" in str(caught.value) and str(path) in str(caught.value)
        second = controller(path, boxes)
        output = second.communicate(timeout=60)
        assert second.returncode != 0 and f"process {first.pid}" in output[1]
        # The refused one took nothing and changed nothing.
        assert holder(path) == first.pid
        assert path.read_text() == f"{first.pid}\n"
    finally:
        end(first)


def test_another_home_on_the_same_folder_is_refused(tmp_path: Path, boxes: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(boxes)
    first = controller(tmp_path / "one.lock", boxes)
    try:
        wait_until_locked(first)
        with ControllerLock.acquire(tmp_path / "two.lock") as lock:
            with pytest.raises(AlreadyRunning, match="watched folder") as caught:
                lock.lock_folder(link)
            assert caught.value.pid == first.pid
            other = tmp_path / "other"
            other.mkdir()
            lock.lock_folder(other)
    finally:
        end(first)


def test_kill_9_of_the_first_lets_the_next_in_at_once(tmp_path: Path, boxes: Path) -> None:
    path = tmp_path / "controller.lock"
    for _ in range(3):
        process = controller(path, boxes)
        wait_until_locked(process)
        end(process, signal.SIGKILL)
        assert holder(path) is None
        with ControllerLock.acquire(path) as lock:
            lock.lock_folder(boxes)
            assert path.read_text() == f"{os.getpid()}\n"


def test_a_child_of_the_controller_does_not_keep_the_lock(tmp_path: Path, boxes: Path) -> None:
    path = tmp_path / "controller.lock"
    lock = ControllerLock.acquire(path)
    lock.lock_folder(boxes)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lock.release()
        with ControllerLock.acquire(path) as again:
            again.lock_folder(boxes)
    finally:
        child.kill()
        child.wait()


def test_a_stale_or_garbled_lock_file_keeps_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "controller.lock"
    for text in (b"1\n", b"\xff" * 5000, b""):
        path.write_bytes(text)
        with ControllerLock.acquire(path):
            assert path.read_text() == f"{os.getpid()}\n"


def test_a_replaced_folder_is_locked_anew_and_a_missing_one_is_no_error(
    tmp_path: Path, boxes: Path
) -> None:
    with ControllerLock.acquire(tmp_path / "one.lock") as lock:
        lock.lock_folder(tmp_path / "missing")
        lock.lock_folder(boxes)
        lock.lock_folder(boxes)
        boxes.rename(tmp_path / "old")
        boxes.mkdir()
        assert holder(boxes) is None
        lock.lock_folder(boxes)
        assert holder(boxes) == os.getpid()
        assert holder(tmp_path / "old") is None
    assert holder(boxes) is None


def test_something_else_in_place_of_the_lock_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "controller.lock"
    os.mkfifo(path)
    with pytest.raises(HostError, match="not a regular file"):
        ControllerLock.acquire(path)
    path.unlink()
    canary = tmp_path / "canary"
    canary.write_bytes(b"canary")
    path.symlink_to(canary)
    with pytest.raises(HostError, match="cannot write"):
        ControllerLock.acquire(path)
    assert canary.read_bytes() == b"canary"
    with pytest.raises(HostError):
        ControllerLock.acquire(tmp_path / "nowhere" / "controller.lock")
