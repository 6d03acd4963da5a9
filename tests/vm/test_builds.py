"""Images built by steps inside microVMs: kept, shared, refused, thrown away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.vm.harness import TINY, Home, until

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(600)]


def nothing_at_work(home: Home) -> None:
    """No machine of a build, and nothing that one leaves behind when it is gone."""

    def clean() -> bool:
        left = [*(home.path / "builds").glob(".*"), *(home.path / "images").glob(".build-*")]
        return not left and not (home.runtime / ".b").exists()

    until(clean, 30, f"nothing of a build is left: {os.listdir(home.path / 'builds')}")


def image_of(home: Home, name: str) -> str:
    home.ready(name, 300)
    for condition in home.report(name)["conditions"]:
        if condition["type"] == "ImageReady":
            return str(condition["message"])
    raise AssertionError(home.report(name))


def test_steps_make_an_image_that_is_shared_and_cached(shared_home: Home, tmp_path: Path) -> None:
    home = shared_home
    lines = (
        "env: {GREETING: 'good morning'}\nrun:\n"
        '  - echo "$GREETING" > /etc/greeting\n'
        "  - chown 7:8 /etc/greeting && chmod 4711 /etc/greeting && ln /etc/greeting /etc/same\n"
    )
    home.put("oak", TINY + lines)
    first = image_of(home, "oak")
    assert home.run("oak", "cat", "/etc/greeting").stdout == b"good morning\n"
    facts = home.run("oak", "stat", "-c", "%a %u %g %h", "/etc/greeting", "/etc/same").stdout
    assert facts == b"4711 7 8 2\n" * 2
    nothing_at_work(home)
    assert len(list((home.path / "builds").glob("[!e]*"))) == 2
    home.put("elm", TINY + lines)
    assert image_of(home, "elm") == first
    home.put("elm", TINY + lines + "  - echo more > /etc/more\n")
    until(lambda: home.condition("elm", "Ready")[0] == "False", 120, "it is replaced")
    assert image_of(home, "elm") != first
    assert home.run("elm", "cat", "/etc/greeting", "/etc/more").stdout == b"good morning\nmore\n"
