"""logs and events, get too while it watches: what there is, and then what comes."""

from __future__ import annotations

import os
import signal
import subprocess

from controller.store import Store
from reconcilers.layout import Layout
from specs.drift import Event
from tests.unit.cli.settled import SINCE, condition, settle
from tests.unit.cli.support import ARGV, box, environment, text


def test_logs_keep_lines_and_tail(layout: Layout) -> None:
    settle(layout)
    assert box(layout.home, "logs", "fern").returncode == 1
    layout.sandbox_runtime("fern").mkdir()
    layout.console_log("fern").write_bytes(b"one\r\ntwo\nthree")
    assert box(layout.home, "logs", "fern", "--console").stdout == b"one\ntwo\nthree"
    assert box(layout.home, "logs", "fern", "--tail", "1").stdout == b"three"
    layout.console_log("fern").unlink()
    os.mkfifo(layout.console_log("fern"))
    assert box(layout.home, "logs", "fern").returncode == 1


def test_logs_follow_appended_and_replaced_logs(layout: Layout) -> None:
    settle(layout)
    layout.sandbox_runtime("fern").mkdir()
    log = layout.console_log("fern")
    log.write_bytes(b"one\n")
    with following(layout, "logs", "fern") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"one\n"
        with log.open("ab") as file:
            file.write(b"two\n")
        assert child.stdout.readline() == b"two\n"
        (log.parent / "next").write_bytes(b"again\n")
        (log.parent / "next").rename(log)
        assert child.stdout.readline() == b"again\n"
        interrupt(child)


def test_events_follow(layout: Layout) -> None:
    settle(layout)
    with following(layout, "events", "fern") as child:
        assert child.stdout is not None
        assert b"its VMM runs" in child.stdout.readline()
        Store(layout).append_event("fern", Event(SINCE, "Stopped", "asked for", 2))
        assert b"asked for" in child.stdout.readline()
        interrupt(child)


def test_events_are_aligned(layout: Layout) -> None:
    settle(layout)
    Store(layout).append_event("fern", Event(SINCE, "RefusedByPolicy", "asked for", 2))
    lines = text(box(layout.home, "events")).splitlines()
    assert lines[0].index("its VMM runs") == lines[1].index("asked for")


def test_get_watch_prints_what_changes(layout: Layout) -> None:
    settle(layout)
    with subprocess.Popen(
        [*ARGV, "get", "--watch"], stdout=subprocess.PIPE, env=environment(layout.home)
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(b"NAME")
        assert child.stdout.readline().split()[:2] == [b"fern", b"True"]
        settle(layout, conditions=(condition("Ready", "False", "VmmExited"),))
        assert child.stdout.readline().split()[:2] == [b"fern", b"False"]
        interrupt(child)


def following(layout: Layout, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*ARGV, *arguments, "--follow"], stdout=subprocess.PIPE, env=environment(layout.home)
    )


def interrupt(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
