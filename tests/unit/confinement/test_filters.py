"""The number of filters of real processes, which load them as a VMM does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from reconcilers.confinement import filters
from reconcilers.confinement.atlaunch import FILTERS_KEY
from specs.reading import Reading

LOADER = """
import sys, pyseccomp, os
print("begun", flush=True)
for line in sys.stdin:
    pyseccomp.SyscallFilter(pyseccomp.ALLOW).load()
"""


@pytest.fixture
def loader() -> Iterator[subprocess.Popen[bytes]]:
    """Loads one filter more for each line that it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        yield process
        process.kill()


def recorded(number: int) -> list[Reading]:
    text = str(number)
    return [Reading(*FILTERS_KEY, text, text, True, "", "at launch", "replace")]


def test_a_record_without_a_number_is_of_one_filter() -> None:
    assert filters.at_launch(recorded(3)) == 3
    assert filters.at_launch([]) == 1
    assert filters.at_launch(recorded(0)) == 1, "ours is there in any case"


async def test_a_filter_that_comes_later_is_waited_for(loader: subprocess.Popen[bytes]) -> None:
    before = filters.of(os.getpid())  # which a child has as well
    assert before is not None and loader.stdin is not None
    loader.stdin.write(b"\n" * 2)
    loader.stdin.flush()
    assert await filters.all_loaded(loader.pid, recorded(before + 1), 1, 20)
    assert filters.of(loader.pid) == before + 2
    assert not await filters.all_loaded(loader.pid, recorded(before + 1), 2, 0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """It is still there afterwards: until somebody asks how it ended."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


async def test_nobody_waits_for_a_process_that_has_ended(loader: subprocess.Popen[bytes]) -> None:
    end(loader)
    assert filters.of(loader.pid) is None
    begun = time.monotonic()
    assert not await filters.all_loaded(loader.pid, recorded(1), 1, 60)
    assert time.monotonic() - begun < 30
