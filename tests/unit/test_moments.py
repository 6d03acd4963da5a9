"""The moments at which tests kill are spread over what is done, its last step included."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tests.moments import Moments


def work(folder: Path) -> None:
    """Ten files in a folder that is new, which gets its name at the end."""
    working = folder / "working"
    working.mkdir()
    for number in range(10):
        time.sleep(0.01)
        (working / str(number)).write_text("x")
    time.sleep(0.01)
    working.rename(folder / "done")


def clear(folder: Path) -> None:
    for each in (folder / "done").iterdir():
        each.unlink()
    (folder / "done").rmdir()


@pytest.mark.quiet  # each step of the work takes 10 ms
def test_they_are_spread_over_all_that_is_done(tmp_path: Path) -> None:
    rounds = 12
    moments = Moments(random.Random(1), rounds, tmp_path, clock=0)
    with moments.learned():
        work(tmp_path)
    clear(tmp_path)
    seen, named = [], 0
    for _ in range(rounds):
        working = threading.Thread(target=work, args=(tmp_path,))
        with moments.one() as moment:
            working.start()
            told = moment()
            seen.append(len(list(tmp_path.glob("working/*"))))
            # The change that it says it came after is there.
            assert "done)" not in told or (tmp_path / "done").exists(), told
            named += "done)" in told or "working)" in told
        working.join()
        clear(tmp_path)
    assert len(set(seen)) > 3, "after few and after many of the files"
    assert named, "and where the folder is made, or gets its name"
