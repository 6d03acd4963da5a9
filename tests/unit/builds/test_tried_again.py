"""When a build that failed is run again, and when not."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from reconcilers.builds import engine, queue
from reconcilers.builds.queue import NoNetwork, StepFailed
from reconcilers.builds.recipes import Recipe, recipe_of
from reconcilers.facts import Image
from reconcilers.host import Host
from reconcilers.images import building
from reconcilers.images.progress import Board, Progress
from reconcilers.mounts import Rules
from specs.boxfile import Boxfile

BASE = Image("b" * 64, "s" * 64, Path("root.squashfs"))
BOX = Boxfile(name="agent", base="example.org/tool", run=("false",))


class Images:
    board = Board()

    def at(self, digest: str) -> None:
        return None

    def digest_for(self, base: str) -> str:
        return BASE.digest

    def taken(self, digest: str) -> Any:
        return nullcontext()


def no_rules() -> Rules:
    raise AssertionError("nothing of the host is read")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    async def of_base(*_: object, **__: object) -> Image:
        return BASE

    monkeypatch.setattr(building, "of_base", of_base)
    unused = cast(Any, None)
    return Host(unused, unused, unused, cast(Any, Images()), unused, unused, {})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Boxfile]:
    """What was built so far; each of it fails."""
    found = list[Boxfile]()

    class Failing:
        def __init__(self, host: Host, box: Boxfile, *_: object) -> None:
            found.append(box)

        async def run(self) -> Image:
            raise StepFailed("run: false: it ended with status 1")

    monkeypatch.setattr(engine, "_Build", Failing)
    return found


@pytest.mark.parametrize("again", [False, True])
async def test_passes_do_not_run_a_failed_step_again_and_again(
    host: Host, runs: list[Boxfile], again: bool
) -> None:
    for _ in range(3):
        with pytest.raises(StepFailed, match="status 1"):
            await engine.for_start(host, BOX, no_rules, again=again)
    assert len(runs) == 1
    with pytest.raises(StepFailed):
        await engine.build(host, BOX, no_rules, Progress())
    assert len(runs) == 2, "whoever asks for it has it run"


@pytest.mark.parametrize(
    ("change", "network"), [({"ram_mib": 4096}, True), ({"cpus": 4}, True), ({}, False)]
)
async def test_another_machine_is_another_try(
    host: Host, runs: list[Boxfile], change: dict[str, int], network: bool
) -> None:
    """Nor does a sandbox whose machine is too small keep others with its recipe from starting."""
    other = BOX.model_copy(update={"name": "other", **change})
    for box, allowed in ((BOX, True), (other, network)):
        host.build_network = partial(bool, allowed)
        with pytest.raises(StepFailed):
            await engine.for_start(host, box, no_rules, again=False)
    assert runs == [BOX, other]


async def test_a_build_that_the_host_gives_no_network_is_one_without(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not tried with one by itself for a while, so that it does not boot in vain each time."""
    tried = list[str]()

    class Lacking:
        def __init__(self, host: Host, box: Boxfile, base: object, recipe: Recipe, *rest: object):
            self.recipe, self.lacking = recipe, str(rest[0])

        async def run(self) -> Image:
            tried.append(self.lacking)
            if not self.lacking:
                raise NoNetwork("nft is missing")
            return Image(self.recipe.alone, "s", Path("root.squashfs"))

    monkeypatch.setattr(engine, "_Build", Lacking)
    made = await engine.for_start(host, BOX, no_rules, again=False)
    recipe = recipe_of(BOX, BASE.digest)
    assert recipe is not None and made.digest == recipe.alone != recipe.digest
    assert tried == ["", "nft is missing"] and host.queue.lacks_network == "nft is missing"
    assert await engine.for_start(host, BOX, no_rules, again=False) == made
    assert tried[2:] == ["nft is missing"]
    # Whoever asks for it has it tried again.
    await engine.build(host, BOX, no_rules, Progress())
    assert tried[3:] == ["", "nft is missing"]
    host.build_network = lambda: False
    await engine.build(host, BOX, no_rules, Progress())
    assert tried[5:] == ["policy.toml says build_network = false"]
    monkeypatch.setattr(queue, "AGAIN_SECONDS", 0.0)
    host.queue.network("nft is missing")
    assert host.queue.lacks_network == ""
