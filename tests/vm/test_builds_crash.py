"""kill -9 of the controller at random moments of builds: the old or the new image, nothing left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections import Counter

import pytest

from tests.moments import Moments
from tests.vm.building import BUILT, image_of, nothing_at_work, steps, whole_images
from tests.vm.harness import PATIENCE, READY, TINY, Home, until
from tests.vm.strays import no_strays

SEED = int(os.environ.get("BOX_TEST_SEED", "20261130"))
TEXT = "{0}\n{0}1\n"

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(1000)]


def put(home: Home, number: int, state: str = "running") -> None:
    lines = (f"echo {number} > /etc/number", "echo $(cat /etc/number)1 >> /etc/number")
    home.put("oak", f"{TINY}state: {state}\n{steps(*lines)}")


def watched(home: Home, rounds: int, part: int) -> Moments:
    """Of builds on a base that is there."""
    home.put("ash", TINY + "state: stopped\n")
    home.box("build", "ash")
    folders = (home.path / "builds", home.path / "images", home.runtime)
    return Moments(random.Random(SEED + part), rounds, *folders)


def reached(home: Home, before: set[str], finished: int) -> str:
    """How far the build was when it was killed, by what lies there."""
    # What has a name is whole, and at most the one image that was being made is new.
    new = whole_images(home).keys() - before
    assert len(new) <= 1
    if new:
        return "its image has its name"
    if list((home.path / "images").glob(".build-*/ready/root.squashfs")):
        return "its image is made, read or proved"
    if list((home.path / "images").glob(".build-*")):
        return "its image is begun"
    at_work = bool(list((home.path / "builds").glob(".work-*")))
    return f"{kept(home) - finished} more steps are kept" + ", one is at work" * at_work


def kept(home: Home) -> int:
    return len(list((home.path / "builds").glob("[!.]*")))


def test_killed_at_any_moment_a_build_is_done_by_the_next_controller(home: Home) -> None:
    rounds = 3
    moments = watched(home, rounds, 0)
    for number in range(rounds + 1):
        before, finished = set(whole_images(home)), kept(home)
        if number == 0:
            with moments.learned():
                put(home, number)
                image_of(home, "oak")
        else:
            with moments.one() as moment:
                put(home, number)
                when = moment()
                home.stop(signal.SIGKILL)
            print(f"seed {SEED}, round {number}, {when}: {reached(home, before, finished)}")
            home.start()
            image_of(home, "oak")
        # Its report may be that of the killed controller, whose VM the new one has yet to look at.
        until(lambda: home.run("oak", "true", check=False).returncode == 0, READY, "it answers")
        assert home.run("oak", "cat", "/etc/number").stdout.decode() == TEXT.format(number)
        nothing_at_work(home)
        home.remove("oak")
        home.nothing_left("oak")
        no_strays(home)


@pytest.mark.long
@pytest.mark.parametrize("part", [1, 2, 3])
def test_killed_again_and_again_it_gets_on(home: Home, part: int) -> None:
    """Each round goes on with the build of the former one, until that one is done."""
    rounds = 10
    moments = watched(home, rounds, part)
    number = 0

    def accepted() -> bool:
        return bool(home.report("oak").get("generation") == number + 1)

    def is_right(digest: str) -> None:
        path = home.path / "images" / digest / "root.squashfs"
        argv = ["unsquashfs", "-cat", str(path), "etc/number"]
        found = subprocess.run(argv, capture_output=True, check=True).stdout
        assert found.decode() == TEXT.format(number)

    put(home, number, "stopped")
    until(accepted, 60, "it is known")
    before = set(whole_images(home))
    with moments.learned():
        home.box("build", "oak", timeout=BUILT)
    is_right(*(whole_images(home).keys() - before))
    seen: Counter[str] = Counter()
    for each in range(rounds):
        if whole_images(home).keys() - before:
            number += 1
            put(home, number, "stopped")
            until(accepted, 60, "it is known")
        before, finished = set(whole_images(home)), kept(home)
        with moments.one() as moment:
            asking = home.asking("build", "oak")
            when = moment()
            home.stop(signal.SIGKILL)
        asking.wait(60 * PATIENCE)
        seen[how_far := reached(home, before, finished)] += 1
        print(f"seed {SEED} + {part}, round {each}, {when}: {how_far}", flush=True)
        home.start()
        nothing_at_work(home)
        no_strays(home)
        for digest in whole_images(home).keys() - before:
            is_right(digest)
    home.box("build", "oak", timeout=BUILT)
    for digest in whole_images(home).keys() - before:
        is_right(digest)
    print(dict(seen))
    assert len(seen) >= 3, "killed in steps, after them and between"
