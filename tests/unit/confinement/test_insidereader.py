"""The process that enters a user namespace answers each request, and is not waited for long."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.confinement import procfds
from reconcilers.confinement.inside import Reader
from specs.errors import HostError


@pytest.fixture
def inhabitant() -> Iterator[int]:
    """A process that is root in a user namespace of its own."""
    argv = ["unshare", "--user", "--map-root-user", "sh", "-c", "echo in; read end"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, env={}) as child:
        assert child.stdout is not None and child.stdout.readline() == b"in\n"
        yield child.pid
        child.kill()


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.close()


def process_of(reader: Reader) -> int:
    assert reader._process is not None
    return reader._process.pid


def test_it_answers_one_request_after_the_other(
    reader: Reader, inhabitant: int, tmp_path: Path
) -> None:
    held = procfds.read_held(inhabitant, ())
    for _ in range(2):
        answer = reader.ask(ask="held", pid=inhabitant, given=[])["held"]
        assert [tuple(each) if isinstance(each, list) else each for each in answer] == list(held)
    file = tmp_path / "cgroup.procs"
    file.touch()
    reader.ask(ask="attach", pid=inhabitant, files=[str(file)], ids=[0, 0])
    assert file.read_text() == str(inhabitant)


def test_what_it_meets_is_raised_here_and_it_goes_on(reader: Reader, inhabitant: int) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(FileNotFoundError):
        reader.ask(ask="held", pid=ended.pid, given=[])
    with pytest.raises(HostError, match="KeyError"):
        reader.ask(ask="nothing", pid=inhabitant)
    first = process_of(reader)
    reader.ask(ask="held", pid=inhabitant, given=[])
    assert process_of(reader) == first


def test_one_that_stands_still_is_ended_and_another_answers(
    reader: Reader, inhabitant: int
) -> None:
    reader.ask(ask="held", pid=inhabitant, given=[])
    stopped = process_of(reader)
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(HostError, match="does not answer"):
        reader.ask(ask="held", pid=inhabitant, given=[])
    assert time.monotonic() - began < 60
    assert not os.path.exists(f"/proc/{stopped}")
    reader.ask(ask="held", pid=inhabitant, given=[])
