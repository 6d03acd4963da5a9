"""Whose process is whose, and alive: real processes, some of which only have the number of one."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconcilers import launchrecord, microvm, procfs, steps
from reconcilers.act import Actor
from reconcilers.mounts import Rules
from specs.names import HostNames
from tests.unit.reconcilers.hosts import WEB, host_in
from tests.vm.harness import until


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *arguments])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def lives(child: subprocess.Popen[bytes]) -> bool:
    found = procfs.read_stat(child.pid)
    return found is not None and not found.dead


async def test_a_process_that_got_a_strays_number_is_not_killed(tmp_path: Path) -> None:
    actor = Actor(
        host_in(tmp_path),
        "web",
        None,
        None,
        None,
        lambda name, pid: None,
        lambda name: None,
        lambda: Rules(()),
        lambda name: contextlib.nullcontext(),
    )
    with (
        process("-name", WEB.marker) as stray,
        process() as anybody,
        process("-name", HostNames(WEB.instance, "other").marker) as other,
    ):
        pids = (stray.pid, anybody.pid, other.pid)
        await actor.act(steps.KillStrays("vmm", "no stray process", "3 stray", pids=pids))
        assert [lives(child) for child in (stray, anybody, other)] == [False, True, True]


def test_a_controller_out_of_descriptors_takes_nothing_living_for_dead(tmp_path: Path) -> None:
    layout = host_in(tmp_path).layout
    layout.sandbox_runtime("web").mkdir(parents=True)
    layout.launch_record("web").write_text("{}")
    with process() as child:
        begun = procfs.read_stat(child.pid)
        assert begun is not None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                procfs.alive(child.pid, begun.start_time)
            with pytest.raises(OSError, match="Too many open files"):
                launchrecord.read(layout.launch_record("web"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert procfs.alive(child.pid, begun.start_time) is not None
    assert procfs.alive(child.pid, begun.start_time) is None


def test_a_fifo_in_place_of_a_record_is_no_record_and_stops_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "launch.json")
    assert launchrecord.read(tmp_path / "launch.json") is None


# Thread 1 ends, another one lives on: what a VMM looks like for a moment while it dies, and what a
# taken-over one could look like for good.
HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall(60, 0) # SYS_exit: of this thread alone
"""


@pytest.fixture
def headless() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", HEADLESS])
    yield child
    child.kill()
    child.wait()


async def test_a_process_whose_first_thread_ended_still_lives_until_it_is_killed(
    headless: subprocess.Popen[bytes],
) -> None:
    pid = headless.pid
    until(lambda: (seen := procfs.read_stat(pid)) and seen.state == "Z", 10, "thread 1 ended")
    found = procfs.read_stat(pid)
    assert found is not None and not found.dead
    assert procfs.alive(pid, found.start_time) is not None
    await microvm.kill(pid, found.start_time)
    assert procfs.read_stat(pid) is None, "it was left behind as a zombie"


@pytest.mark.skipif(
    not Path("/proc/2").exists() or procfs.executable(2) is not None,
    reason="this container shows no kernel threads",
)
def test_a_thread_of_the_kernel_is_told_from_a_process() -> None:
    kthreadd, ourselves = procfs.read_stat(2), procfs.read_stat(os.getpid())
    assert kthreadd is not None and kthreadd.kernel
    assert ourselves is not None and not ourselves.kernel
