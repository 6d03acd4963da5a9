"""A builder that is killed at any moment: afterwards there is a whole image or none."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.images.store import Images
from reconcilers.images.verify import open_verified
from tests.moments import Moments
from tests.registry import Registry, needs_registry, registry
from tests.unit.images.layouts import layer

pytestmark = [needs_registry, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
SIZE = 24 << 20


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    with tempfile.TemporaryDirectory(prefix="boxtest-") as folder, registry(Path(folder)) as made:
        lower = layer(*[(f"f{number}", "-", b"x" * number) for number in range(2000)])
        made.layout.image("image", lower, layer(("large", "-", os.urandom(SIZE))))
        made.push("image", "team/image:1")
        yield made


def builder(folder: Path, name: str, home: Path) -> subprocess.Popen[bytes]:
    program = (
        "import sys; from pathlib import Path; from reconcilers.images.store import Images\n"
        "images = Images(Path(sys.argv[1])); images.sweep(); images.build(sys.argv[2])"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", program, str(folder), name]
    return subprocess.Popen(argv, env=environment, cwd=ROOT)


def working_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.fsencode(folder) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.long)])
def test_a_builder_killed_at_any_moment_leaves_all_or_nothing(
    served: Registry, tmp_path: Path, rounds: int
) -> None:
    name, dice = f"{served.host}/team/image:1", random.Random(rounds)
    moments = Moments(dice, rounds, tmp_path / "cut")
    with moments.learned():
        assert builder(tmp_path / "cut", name, served.home).wait() == 0
    subprocess.run(["rm", "-r", str(tmp_path / "cut")], check=True)
    images, outcomes = Images(tmp_path / "cut"), {"there": 0, "not there": 0}
    for number in range(rounds):
        if number % 3:  # else clearing away what the former one left is a part of it
            images.sweep()
        with moments.one() as moment:
            child = builder(tmp_path / "cut", name, served.home)
            when = moment()
            child.send_signal(signal.SIGKILL)
        child.wait()
        limit = time.monotonic() + 120
        while working_in(tmp_path / "cut") and time.monotonic() < limit:
            time.sleep(0.05)
        assert working_in(tmp_path / "cut") == [], "what it had started died with it"
        found = images.observe(name)
        outcomes[outcome := "there" if found is not None else "not there"] += 1
        print(f"round {number}, {when}: {outcome}")
        if found is not None:
            os.close(open_verified(found))
            for path in (tmp_path / "cut" / "refs.toml", found.path.parent):
                subprocess.run(["rm", "-r", str(path)], check=True)
    print(outcomes)
    assert rounds < 30 or all(outcomes.values()), "killed before it was there, and afterwards"
    assert builder(tmp_path / "cut", name, served.home).wait() == 0
    found = images.observe(name)
    assert found is not None
    os.close(open_verified(found))
    names = {path.name for path in (tmp_path / "cut").iterdir()}
    assert names == {found.digest, "refs.toml"}
