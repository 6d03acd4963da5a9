"""The whole suite as an ordinary user, who sees less of the host and so proves less."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.escape.threat_model import differences
from tests.vm.harness import ACCEL
from tests.vm.people import PYTHON, Person, PersonsHome, person, persons_home

pytestmark = [pytest.mark.needs_root, pytest.mark.long, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def someone() -> Iterator[PersonsHome]:
    with person() as made, persons_home(made) as home:
        yield home


@pytest.mark.parametrize("isolation", ["strict", "standard"])
def test_ordinary_user_finds_no_hole_and_what_the_threat_model_says(
    isolation: str, someone: PersonsHome
) -> None:
    owner: Person = someone.owner
    place = owner.folder / "own" / isolation
    place.mkdir()
    os.chown(place, owner.uid, owner.gid)
    box = someone.command()
    as_user = box[: len(box) - len([PYTHON, "-m", "controller.cli.main"])]
    report = place / "report.json"
    suite = str(owner.tree / "security" / "escape-test.sh")
    words = [f"{PYTHON} -m controller.cli.main", isolation, "--accel", ACCEL]
    done = subprocess.run(
        [*as_user, suite, *words, "--json", str(report)],
        env={**someone.env, "TMPDIR": str(place)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=660,
    )
    print(done.stdout, done.stderr)
    told = json.loads(report.read_text())
    assert [one["id"] for one in told["checks"] if one["result"] == "FAIL"] == []
    assert done.returncode == 0
    assert told["user"] == "ordinary"
    assert differences(told) == []
