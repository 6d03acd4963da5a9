"""The whole suite as an ordinary user, who sees less of the host and so proves less."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.escape.asuser import BOX, Somebody, somebody
from tests.escape.test_suite import DEPENDS, UNPROVED
from tests.escape.threat_model import differences
from tests.vm.harness import ACCEL

pytestmark = [pytest.mark.needs_root, pytest.mark.long, pytest.mark.timeout(700)]

# What is shown to root alone, or would cost a sandbox for each of a hundred calls.
ROOT_ALONE = {"outside.seccomp", "jail.calls"}
# Nothing is shared for writing; all sandboxes have the user's own identity.
WITHOUT = {"strict": {"mounts.outward"}, "standard": {"between.disk"}}


@pytest.fixture(scope="module")
def someone() -> Iterator[Somebody]:
    with somebody() as made:
        yield made


@pytest.mark.parametrize("isolation", ["strict", "standard"])
def test_ordinary_user_finds_no_hole_and_what_the_threat_model_says(
    isolation: str, someone: Somebody
) -> None:
    done = someone.suite(BOX, isolation, "--accel", ACCEL, seconds=660)
    print(done.stdout, done.stderr)
    told = json.loads(someone.report.read_text())
    assert [one["id"] for one in told["checks"] if one["result"] == "FAIL"] == []
    assert done.returncode == 0
    assert told["user"] == "ordinary"
    assert differences(told) == []
    warned = {one["id"] for one in told["checks"] if one["result"] == "WARN"}
    assert warned - DEPENDS == UNPROVED | ROOT_ALONE | WITHOUT[isolation]
    assert someone.left() == []
