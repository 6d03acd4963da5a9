"""kill -9 of the controller at seeded moments of builds: the old or the new image, nothing left."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.vm.building import image_of, nothing_at_work, steps, whole_images
from tests.vm.harness import SLOWNESS, TINY, Home

ALL = os.environ.get("BOX_TEST_ALL") == "1"
ROUNDS = 30 if ALL else 3

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(3600 if ALL else 600)]


def test_killed_at_any_moment_a_build_is_done_by_the_next_controller(home: Home) -> None:
    seed = int(os.environ.get("BOX_TEST_SEED", "20261130"))
    chance = random.Random(seed)
    for number in range(ROUNDS):
        after = chance.uniform(0.1, 12.0) * SLOWNESS
        told = f"seed {seed}, round {number}: {after=:.2f}"
        before = whole_images(home) if number else {}
        lines = (f"echo {number} > /etc/number", "sleep 1; echo $(cat /etc/number)1 >> /etc/number")
        home.put("oak", TINY + steps(*lines))
        time.sleep(after)
        home.stop(signal.SIGKILL)
        # What has a name is whole, and at most the one image that was being made is new.
        new = whole_images(home).keys() - before.keys()
        assert len(new) <= (1 if number else 2), told
        home.start()
        image_of(home, "oak")
        assert home.run("oak", "cat", "/etc/number").stdout.decode() == f"{number}\n{number}1\n", (
            told
        )
        nothing_at_work(home)
        home.remove("oak")
        home.nothing_left("oak")
