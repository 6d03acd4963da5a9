"""Copies of a process's descriptors tell what its /proc/PID/fd tells."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from reconcilers.confinement import procfds

# One of every kind that is told apart; it says so once they are open.
HOLDING = """
import os, select, socket, time
kept = [os.eventfd(0), os.memfd_create("m"), select.epoll(), socket.socketpair(), os.pipe(),
        open("/dev/full"), os.pidfd_open(os.getpid())]
print("open", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder() -> Iterator[int]:
    """In a mount namespace of its own, so that what it is given lies outside of its root."""
    with ExitStack() as opened:
        file = opened.enter_context(tempfile.TemporaryFile())
        device = opened.enter_context(open("/dev/zero"))
        folder = os.open("/", os.O_RDONLY)
        opened.callback(os.close, folder)
        child = subprocess.Popen(
            ["unshare", "--mount", sys.executable, "-c", HOLDING],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={"ONE": "1", "TWO": "22"},
            pass_fds=[file.fileno(), device.fileno(), folder],
        )
    try:
        assert child.stdout is not None and child.stdout.readline() == b"open\n"
        yield child.pid
    finally:
        child.kill()
        child.wait()


@pytest.mark.needs_root
@pytest.mark.parametrize("given", [(), ("device 1:5",)])
def test_both_ways_to_read_say_the_same(holder: int, given: tuple[str, ...]) -> None:
    read = procfds.read_held(holder, given)
    assert procfds.read_copies(holder, given) == read
    # what the test is about was really seen: of /dev/full, which it opened itself, nothing
    expected = {"device 1:3", "device 1:5"} - set(given)
    assert {each for each in read.foreign if each.startswith("device")} == expected
    assert any(each.startswith("file ") for each in read.foreign)
    assert len(read.strange) == 2  # a directory and a pidfd
    assert read.environment == len("ONE=1\0TWO=22")


@pytest.mark.needs_root
def test_no_copy_is_kept(holder: int) -> None:
    before = set(os.listdir("/proc/self/fd"))
    procfds.read_copies(holder, ())
    assert set(os.listdir("/proc/self/fd")) == before


def test_who_has_ended_is_said_to_have() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ProcessLookupError):
        procfds.read_copies(child.pid, ())
