"""What a controller keeps right beside its VMs: its own files, claims by name, --once, its log."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from tests.vm.harness import Home, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(180)]

STOPPED = "state: stopped\n"


def known(home: Home, *names: str) -> None:
    reports = [home.path / "observed" / name / "observed.toml" for name in names]
    until(lambda: all(path.exists() for path in reports), 30, f"{names} are known; {home.log()}")


def state_of(home: Home, name: str) -> Path:
    return home.path / "state" / f"{name}.toml"


def state_now(home: Home, name: str) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return state_of(home, name).read_bytes()
    return b""


def test_deleting_by_name_is_its_own_confirmation(home: Home) -> None:
    names = ("ash", "elm", "fir")
    for name in names:
        home.put(name, STOPPED)
    known(home, *names)
    for name in names:
        home.box("delete", name)
    until(lambda: not any(state_of(home, n).exists() for n in names), 30, "all three are gone")


def test_a_boxfile_that_never_was_good_is_not_held_back(home: Home) -> None:
    names = ("ash", "elm", "fir")
    for name in names:
        home.put(name, "cpus: many\n")
    until(lambda: home.box("get", "-o", "name").stdout.split() == [b"ash", b"elm", b"fir"], 30, "x")
    for name in names:
        home.remove(name)
    until(lambda: home.box("get", "-o", "name").stdout == b"", 30, "all are forgotten")


def test_once_removes_what_is_gone_and_says_what_is_not_as_declared(home: Home) -> None:
    home.put("oak", STOPPED)
    home.put("elm", STOPPED)
    known(home, "oak", "elm")
    home.stop()
    home.remove("elm")
    home.put("bad", "cpus: many\n")
    done = home.box("controller", "--once", check=False, timeout=60)
    assert done.returncode == 1
    assert b"bad is not as declared: InvalidBoxfile" in done.stderr
    assert not state_of(home, "elm").exists()
    home.remove("bad")
    assert home.box("controller", "--once", check=False, timeout=60).returncode == 0


def test_files_of_ours_that_somebody_broke_are_written_again(home: Home) -> None:
    home.put("oak", STOPPED)
    known(home, "oak")
    instance = home.instance
    state_of(home, "oak").write_text("= garbage")
    (home.path / "instance").unlink()
    home.forget_reports()
    home.look_again()
    until(lambda: (home.path / "instance").exists(), 20, "the instance is back")
    assert home.instance == instance
    # First it is set aside, so for a moment there is none.
    until(lambda: b"oak" in state_now(home, "oak"), 20, "the record is back")
    known(home, "oak")
    assert [p.name for p in (home.path / "state").glob("oak.toml.garbled-*")]


def test_a_used_home_without_its_instance_is_an_error_with_a_fix(home: Home) -> None:
    home.put("oak", STOPPED)
    known(home, "oak")
    home.stop()
    instance = home.instance
    (home.path / "instance").unlink()
    try:
        for command in (["get"], ["controller", "--once"]):
            done = home.box(*command, check=False)
            assert done.returncode == 1
            assert b"instance" in done.stderr
            assert b"fix:" in done.stderr
    finally:
        (home.path / "instance").write_text(instance + "\n")


def test_refusals_are_in_the_events_and_in_the_log(home: Home) -> None:
    home.put("oak", STOPPED)
    known(home, "oak")
    home.put("oak", "cpus: many\n")
    until(lambda: "refused: InvalidBoxfile" in home.log(), 20, "logged")
    assert b"InvalidBoxfile" in home.box("events", "oak").stdout
    home.put("oak", STOPPED)
    until(lambda: "accepted" in home.log(), 20, "logged")


def test_a_removed_socket_is_made_again(home: Home) -> None:
    (home.path / "box.sock").unlink()
    home.look_again()
    until(home.answers, 20, "somebody listens at a socket that is back")
    assert (home.path / "box.sock").stat().st_mode & 0o777 == 0o600


def test_a_controller_whose_lock_was_taken_away_steps_down_for_the_next(home: Home) -> None:
    first = home.controller
    assert first is not None
    away = home.path / "away"
    first.send_signal(signal.SIGSTOP)  # else it would notice and take the lock again at once
    (home.path / "controller.lock").unlink()
    home.boxes.rename(away)  # its own lock would keep the second one out
    home.boxes.mkdir()
    (home.path / "box.sock").unlink()
    second = Home(home.path)
    try:
        second.start()
        first.send_signal(signal.SIGCONT)
        home.look_again()
        assert first.wait(60) == 1
    finally:
        second.stop()
        home.controller = None
    assert "already runs" in home.log()


def test_a_removed_lock_is_taken_again(home: Home) -> None:
    (home.path / "controller.lock").unlink()
    home.look_again()
    until(lambda: (home.path / "controller.lock").exists(), 20, "the lock is back")
    assert home.box("controller", check=False).returncode != 0


def test_a_file_dropped_while_the_controller_starts_is_seen_at_once(home: Home) -> None:
    """Between the first scan and the watch there is a moment that gives no hint."""
    for number in range(8):
        home.stop()
        home.start()
        home.put(f"oak{number}", STOPPED)
        state = state_of(home, f"oak{number}")
        until(state.exists, 10, f"round {number}: it is accepted long before the next timed scan")
