"""Where an ordinary user's sandboxes have no place (case L3)."""

from __future__ import annotations

import os

import pytest

from tests.vm.harness import until
from tests.vm.people import PersonsHome, person

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(120)]


def test_a_home_too_deep_for_its_sockets_starts_nothing_and_says_so() -> None:
    """An ordinary user's sockets may lie in the home. Nothing of the attempt is left."""
    with person() as someone:
        path = someone.folder / ("d" * 40) / ("e" * 40) / "home"
        home = PersonsHome(someone, path)
        for folder in (*reversed(path.parents[:2]), path, home.boxes):
            folder.mkdir(mode=0o700)
            os.chown(folder, someone.uid, someone.gid)
        try:
            home.put("oak")
            home.start()
            until(lambda: home.report("oak").get("failure"), 30, f"it is refused; {home.log()}")
            failure = home.report("oak")["failure"]
            assert "too long, Unix sockets allow 107" in failure["message"], failure
            assert "shorter BOX_HOME" in failure["fix"]
            home.remove("oak")
            home.nothing_left("oak")
            assert "oak" not in home.claims()
        finally:
            home.close()
