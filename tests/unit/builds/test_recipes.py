"""Which image a Boxfile means, and how its steps are put into layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers.builds.recipes import (
    STAGES_MAX,
    digest_for,
    digests_of,
    makes_the_same,
    observe,
    recipe_of,
)
from reconcilers.images.store import Images
from specs.boxfile import Boxfile

BASE = "0" * 64


def box(*run: str, **fields: object) -> Boxfile:
    return Boxfile.model_validate({"name": "oak", "run": run, **fields})


def test_without_steps_it_is_the_image_of_the_base() -> None:
    assert recipe_of(box(env={"A": "b"}), BASE) is None


@given(st.integers(1, 80))
def test_every_step_is_run_once_in_order_and_no_disk_has_too_many_layers(count: int) -> None:
    lines = [f"echo {number}" for number in range(count)]
    found = recipe_of(box(*lines), BASE)
    assert found is not None and found.count == count
    assert [step.argv[-1] for stage in found.stages for step in stage.steps] == lines
    assert len(found.stages) == min(count, STAGES_MAX)
    assert len({stage.key for stage in found.stages}) == len(found.stages)


@pytest.mark.parametrize("count", [2, STAGES_MAX, STAGES_MAX + 9])
def test_what_two_recipes_begin_with_has_the_same_keys_in_both(count: int) -> None:
    lines = [f"echo {number}" for number in range(count)]
    one, other = recipe_of(box(*lines), BASE), recipe_of(box(*lines[:-1], "echo other"), BASE)
    assert one is not None and other is not None
    assert [stage.key for stage in one.stages[:-1]] == [stage.key for stage in other.stages[:-1]]
    assert one.stages[-1].key != other.stages[-1].key and one.digest != other.digest


def test_all_that_goes_in_changes_the_digest_and_nothing_else_does() -> None:
    first = recipe_of(box("true"), BASE)
    assert first is not None
    for other in (box("false"), box("true", "true"), box("true", env={"A": "b"})):
        found = recipe_of(other, BASE)
        assert found is not None and found.digest != first.digest
        assert not makes_the_same(box("true"), other)
    moved = recipe_of(box("true"), "1" * 64)
    assert moved is not None and moved.stages[0].key != first.stages[0].key
    assert recipe_of(box("true", ram_mib=1024, network="bridge"), BASE) == first
    assert makes_the_same(box("true"), box("true", ram_mib=1024))
    assert makes_the_same(box(env={"A": "b"}), box()), "no step sees it"
    assert makes_the_same(box(base="debian"), box(base="docker.io/library/debian:latest"))
    assert not makes_the_same(box(base="debian"), box(base="debian:12"))


def test_an_image_whose_steps_had_no_network_is_another_one(tmp_path: Path) -> None:
    """Without one, that of steps which had one is as good."""
    images = Images(tmp_path / "images")
    asked = box("curl -sf https://example.org/ || true")
    found = recipe_of(asked, images.digest_for(asked.base))
    assert found is not None and found.alone != found.digest
    assert digest_for(images, asked, network=True) == found.digest
    assert digest_for(images, asked, network=False) == found.alone
    assert {found.digest, found.alone} < {*digests_of(images, asked)}
    for digest, network in ((found.alone, False), (found.digest, True)):
        (images.folder / digest).mkdir(parents=True)
        for name in ("sha256", "root.squashfs"):
            (images.folder / digest / name).write_text("x")
        image = observe(images, asked, network=network)
        assert image is not None and image.digest == digest
        if not network:
            assert observe(images, asked, network=True) is None
    assert digest_for(images, asked, network=False) == found.digest
    plain = box()
    assert digest_for(images, plain, network=False) == images.digest_for(plain.base)
    assert digests_of(images, plain) == (images.digest_for(plain.base),)
