"""The network without uplink that an ordinary user's suite makes: what is in it, and who is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from tests.escape.asuser import Somebody, somebody
from tests.vm.people import COUNT, PYTHON

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(120)]


def last(made: Somebody) -> int:
    """The identity that box would take first."""
    return made.home.owner.first + COUNT - 1


def run(made: Somebody, program: str, *words: str) -> dict[str, Any]:
    """What this program of ours prints when it is run by that user."""
    whole = made.home.command()
    as_user = whole[: whole.index(PYTHON)]
    done = subprocess.run(
        [*as_user, PYTHON, str(made.home.owner.tree / "tests/escape" / program), *words],
        env=made.home.env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def look(made: Somebody) -> dict[str, Any]:
    return run(made, "lan_of_user.py", str(made.place / "arena"), str(last(made)))


def test_an_ordinary_user_has_a_network_to_attack_and_no_right_in_it() -> None:
    with somebody() as made:
        found = look(made)
    assert found["beside"] == found["host"] == found["asked"] > 100, found
    assert "the host's own network" in found["refused"]
    assert found["change"] and found["untouched"]
    status: Mapping[str, str] = dict(line.split(":\t") for line in found["status"].splitlines())
    assert status["Uid"].split() == [str(found["uid"])] * 4
    held = {status[each] for each in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
    assert held == {"0" * 16} and status["NoNewPrivs"] == "0"
    assert "Operation not permitted" in found["link"]
    assert found["mapped"].split() == ["0", str(found["uid"]), "1", "1", str(last(made)), "1"]


def test_without_subordinate_identities_nothing_is_attacked_and_it_is_said() -> None:
    with somebody() as made:
        made.home.replaced.update({"/etc/subuid": "", "/etc/subgid": ""})
        found = look(made)
    assert "nothing was attacked: /etc/subuid has no line for" in found["unproved"]
    assert found["untouched"]


def test_what_the_kernel_shows_to_a_user_namespace_alone_is_read_from_within() -> None:
    with somebody() as made:
        found = run(made, "within_of_user.py", str(last(made)))
        assert found["uid"] == str(last(made))
    assert found["plain"] == "refused"
    assert (found["memory"], found["environment"]) == (["word"], "A=a-word-in-its-environment")
    assert found["descriptors"] > 0 and found["mounts"] > 0 and found["address"]
    assert found["slices"] == [True, True]
