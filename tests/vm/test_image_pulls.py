"""Images pulled and pulled again by a real controller: moved tags, `pull: always`, kill -9."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.images.builtin import BUSYBOX
from reconcilers.images.store import Images
from reconcilers.images.verify import open_verified
from tests.moments import Moments
from tests.registry import Registry, needs_registry, registry
from tests.unit.images.layouts import Item, layer
from tests.vm.cases import CaseHome, case_home, kill_vmm, replaced
from tests.vm.harness import TINY, until
from tests.vm.people import person, persons_home
from tests.vm.strays import no_strays
from tests.vm.test_images import begun, pullers

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300), needs_registry]

LOOK_UPS = "tag_lookup_minutes = 0.01\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    programs: list[Item] = [("bin", "d"), ("bin/busybox", "-", BUSYBOX.read_bytes())]
    programs += [(f"bin/{name}", "h", "bin/busybox") for name in ("sh", "cat", "true")]
    system = layer(*programs, mode=0o755)
    with tempfile.TemporaryDirectory(prefix="boxtest-") as tmp, registry(Path(tmp)) as made:
        for content in (b"one", b"two", b"three"):
            made.layout.image(content.decode(), system, layer(("version", "-", content)))
        many = layer(*[(f"f{number}", "-", b"x" * number) for number in range(3000)])
        made.layout.image("large", system, many, layer(("l", "-", os.urandom(24 << 20))))
        made.push("large", "team/large:1")
        yield made


@contextlib.contextmanager
def home_of(served: Registry, config: str = "") -> Iterator[CaseHome]:
    with case_home(config=config) as made:
        made.stop()
        made.env["HOME"] = str(served.home)
        made.start()
        yield made


@pytest.fixture
def home(served: Registry) -> Iterator[CaseHome]:
    with home_of(served, LOOK_UPS) as made:
        yield made


def version(home: CaseHome, name: str = "elm") -> bytes:
    return home.run(name, "cat", "/version").stdout


def asked_for(home: CaseHome, served: Registry) -> str:
    """The story of a tag that moves, and of its sandbox `elm`; that one's Boxfile."""
    name = served.push("one", "team/app:1")
    text = TINY + f"base: {name}\n"
    home.put("elm", text)
    home.put("ash", text)
    for each in ("elm", "ash"):
        home.ready(each)
    pid, beside = home.pid("elm"), home.pid("ash")
    said = home.box("build", "elm").stdout
    assert b"elm: its image is ready: " in said
    served.push("two", "team/app:1")

    def drifted() -> bool:
        home.look_again()
        time.sleep(0.3)
        return b" base.tag " in home.box("drift", "elm").stdout

    until(drifted, 60, f"the moved tag is told; {home.log()}")
    assert home.condition("elm", "Drifted") == ("True", "DriftFound")
    assert (home.pid("elm"), version(home)) == (pid, b"one"), "and nothing else is done"
    home.box("build", "elm", "--pull")
    pid = replaced(home, "elm", pid)
    assert version(home) == b"two"
    home.look_again()
    until(lambda: home.condition("elm", "Drifted")[0] == "False", 30, "it is no drift any more")
    assert home.drifted("elm") == ["base.tag"], "a VM that was replaced on purpose is none"
    home.box("build", "elm", "--pull")
    home.look_again()
    # Whoever did not ask goes on with what it has, and is told.
    assert b" base.tag " in home.box("drift", "ash").stdout
    assert (home.pid("ash"), version(home, "ash")) == (beside, b"one")
    # Always: not while it runs, but before the next start, whatever ended the former one.
    home.put("elm", text + "pull: always\n")
    until(lambda: home.generation("elm") == 2, 30, "the Boxfile is taken up")
    home.ready("elm")
    assert home.pid("elm") == pid
    served.push("three", "team/app:1")
    kill_vmm(home, "elm")
    pid = replaced(home, "elm", pid)
    assert version(home) == b"three"
    return text


def test_another_image_comes_only_when_it_is_asked_for(home: CaseHome, served: Registry) -> None:
    text = asked_for(home, served)
    pid, beside = home.pid("elm"), home.pid("ash")
    # A registry that cannot be asked: the old image is not used in silence.
    home.stop()
    home.env["HOME"] = str(served.stranger)
    home.start()
    assert (home.pid("elm"), home.pid("ash")) == (pid, beside), "also after a restart"
    kill_vmm(home, "elm")
    until(
        lambda: home.condition("elm", "ImageReady") == ("False", "BuildFailed"),
        60,
        "it is not started",
    )
    described = home.box("describe", "elm").stdout
    assert b"unauthorized" in described and b"or write pull: missing" in described
    home.put("elm", text)
    home.ready("elm")
    assert version(home) == b"three"
    until(lambda: b"tag_not_looked_up" in home.box("describe", "elm").stdout, 60, "it is said")
    # What was found for another is taken with the next start.
    assert (home.pid("ash"), version(home, "ash")) == (beside, b"one")
    kill_vmm(home, "ash")
    replaced(home, "ash", beside)
    assert version(home, "ash") == b"three"


def test_so_it_does_for_an_ordinary_user(served: Registry) -> None:
    with person() as someone, persons_home(someone) as home:
        (home.path / "config.toml").write_text(LOOK_UPS)
        os.chown(home.path / "config.toml", someone.uid, someone.gid)
        served.admit(someone.folder / "own", someone.uid, someone.gid)
        home.start()
        asked_for(home, served)
        said = home.box("images", "--prune", "--dry-run").stdout
        assert b"would be removed: 1 image," in said, "neither that of elm nor that of ash"
        home.box("delete", "elm", "ash")
        for each in ("elm", "ash"):
            home.nothing_left(each)
        home.box("images", "--prune")
        assert {each.name for each in (home.path / "images").iterdir()} == {"refs.toml"}


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.long)])
def test_a_controller_killed_while_it_pulls_leaves_all_or_nothing(
    served: Registry, rounds: int
) -> None:
    """A stopped sandbox, so that no VM boots: the pull is asked for with `box build`."""
    name, dice = f"{served.host}/team/large:1", random.Random(rounds)
    with home_of(served) as home:
        home.put("oak", TINY + f"base: {name}\nstate: stopped\n")
        until(lambda: home.generation("oak") or home.report("oak"), 30, "it is known")
        moments = Moments(dice, rounds, home.path / "images")
        with moments.learned():
            home.box("build", "oak")
        seen: Counter[str] = Counter()
        for number in range(rounds):
            images = Images(home.path / "images")
            for each in images.present():
                assert images.discard(each, images.given)
            images.clear()
            images.forget([name])
            with moments.one() as moment:
                watcher = home.asking("build", "oak")
                when = moment()
                home.stop(signal.SIGKILL)
            assert watcher.wait(60) in (0, 1), "whoever watches is told"
            until(lambda: not pullers(home), 20, "whoever fetched died with the controller")
            home.start()
            assert begun(home) == []
            no_strays(home)
            for image in images.present().values():
                assert image is not None, "whole, or not there"
                os.close(open_verified(image))
            outcome = "there" if images.present() else "not there"
            print(f"round {number}, {when}: {outcome}")
            seen[outcome] += 1
        print(dict(seen))
        assert rounds < 30 or len(seen) == 2, "killed before it was there, and afterwards"
        assert b"its image is ready" in home.box("build", "oak").stdout
        home.box("delete", "oak")
        home.nothing_left("oak")
        said = home.box("images", "--prune").stdout
        assert b"removed 1 image" in said
        assert {each.name for each in (home.path / "images").iterdir()} == {"refs.toml"}
