"""Which image a Boxfile means: that of its base, or one that is built on it by steps.

What is built is named for all that went in: the image of the base, each step, the environment.
What ran without a network is named for that: a step may end well without one and have done another
thing. Nothing here runs or reads a step's result.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from reconcilers.chain import LAYERS_MAX
from reconcilers.facts import Image
from reconcilers.images.store import Images
from reconcilers.launched import image_of
from specs import recipe
from specs.boxfile import Boxfile
from specs.recipe import Step

# Part of every digest: raise it whenever the same steps are run or handed out in another way.
_VERSION = "box built 2"
# A disk's layers: the empty one, one for each stage, and one for what comes on top.
STAGES_MAX = LAYERS_MAX - 2


@dataclass(frozen=True)
class Stage:
    """Steps that run in one machine. What they leave is kept under `key`, which also names all that
    was done before."""

    key: str
    steps: tuple[Step, ...]

    @property
    def alone(self) -> str:
        """The key of the same where it, or one before it, ran without a network."""
        return _without_network(self.key)


@dataclass(frozen=True)
class Recipe:
    """What is done to the image of the base, and the digest of what comes of it: `alone` where a
    step ran without a network.
    """

    digest: str
    stages: tuple[Stage, ...]

    @property
    def alone(self) -> str:
        return _without_network(self.digest)

    @property
    def count(self) -> int:
        """Of its steps."""
        return sum(len(stage.steps) for stage in self.stages)


def recipe_of(box: Boxfile, base: str) -> Recipe | None:
    """The recipe of `box` on the image with the digest `base`; None when it has no steps."""
    steps = recipe.steps(box)
    return _recipe(base, steps, tuple(sorted(box.env.items()))) if steps else None


@lru_cache(maxsize=256)  # asked for in every pass
def _recipe(base: str, steps: tuple[Step, ...], env: tuple[tuple[str, str], ...]) -> Recipe:
    keys, former = [], base
    for step in steps:
        former = recipe.key(former, step, dict(env))
        keys.append(former)
    alone = len(steps) if len(steps) <= STAGES_MAX else STAGES_MAX - 1
    stages = [Stage(keys[i], (steps[i],)) for i in range(alone)]
    if alone < len(steps):  # too many for a layer each
        stages.append(Stage(keys[-1], steps[alone:]))
    digest = hashlib.sha256("\0".join((_VERSION, base, *keys)).encode()).hexdigest()
    return Recipe(digest, tuple(stages))


def _without_network(name: str) -> str:
    return hashlib.sha256(f"{_VERSION} without a network {name}".encode()).hexdigest()


def digest_for(images: Images, box: Boxfile, *, network: bool) -> str:
    """The digest of the image that `box` starts from; empty while nobody knows what its base stands
    for. `network`: steps would have one now. Without it, an image whose steps had one is as good.
    Raises HostError, OSError.
    """
    base = images.digest_for(box.base)
    found = recipe_of(box, base) if base else None
    if found is None:
        return base
    return found.digest if network or images.at(found.digest) is not None else found.alone


def digests_of(images: Images, box: Boxfile) -> tuple[str, ...]:
    """Of every image that `box` may start from, that of its base included. Raises as above."""
    base = images.digest_for(box.base)
    found = recipe_of(box, base) if base else None
    return (base,) if found is None else (base, found.digest, found.alone)


def observe(images: Images, box: Boxfile, *, network: bool) -> Image | None:
    """That image if it is here whole; None when it must be made. Raises HostError, OSError."""
    digest = digest_for(images, box, network=network)
    return images.at(digest) if digest else None


def makes_the_same(one: Boxfile, other: Boxfile) -> bool:
    """Whether both mean the same image, as long as their base does not move."""
    return image_of(one) == image_of(other)


def has_steps(box: Boxfile) -> bool:
    """Whether there is more to do than to have the image of its base."""
    return bool(recipe.steps(box))
