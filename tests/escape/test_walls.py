"""What the saboteur replaces is there: a name that moved would let no sabotage begin at all."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.escape import blindness, walls, walls_beyond, walls_shares  # noqa: F401
from tests.escape.saboteur import Product


def test_the_readback_can_be_blinded() -> None:
    with contextlib.ExitStack() as stack:
        blindness.blind(Product(stack, []))


@pytest.mark.parametrize("wall", list(walls.WALLS))
def test_a_wall_can_be_taken_away(
    wall: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "canary").write_text("a canary")
    monkeypatch.setenv("BOX_HOME", str(home))
    with contextlib.ExitStack() as stack:
        product = Product(stack, [])
        walls.WALLS[wall](product)
        walls.into_launchers(product)
