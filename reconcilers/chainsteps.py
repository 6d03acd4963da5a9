"""How a changed chain reaches the disk: the steps between two of them, and what is left to do after
any. Pure, so that what a crash may leave can be tried for every moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reconcilers.chain import Chain


@dataclass(frozen=True)
class Make:
    """Write a new and empty layer of this size in MiB, complete, before anything names it."""

    file: str
    size_mib: int


@dataclass(frozen=True)
class Commit:
    """Replace chain.toml: the one moment at which the disk is another."""

    chain: Chain


@dataclass(frozen=True)
class Freeze:
    """Take away the right to write a layer that is written no more."""

    file: str


@dataclass(frozen=True)
class Remove:
    """Remove a layer that nothing names."""

    file: str


FileStep = Make | Commit | Freeze | Remove


def steps_between(
    old: Chain, new: Chain, present: Mapping[str, bool], base_mib: int = 0
) -> tuple[FileStep, ...]:
    """How the disk that `old` describes becomes the one of `new`, in order.

    `present` are the layer files in its folder, and whether each may be written; `base_mib` is the
    size of a new raw layer. A crash after any of these steps leaves what `tidied` makes clean, as
    the old disk or as the new one.
    """
    made = [
        layer
        for layer in new.layers
        if layer.file not in old.files and layer.file not in present  # made before
    ]
    after = {**present, **{layer.file: True for layer in made}}
    makes = (Make(layer.file, layer.size_mib or base_mib) for layer in made)
    return (*makes, Commit(new), *tidied(new, after))


def tidied(chain: Chain, present: Mapping[str, bool]) -> tuple[FileStep, ...]:
    """What is left to do in a folder whose chain.toml says `chain`."""
    freeze = [file for file in sorted(chain.frozen) if present.get(file)]
    remove = sorted(set(present) - chain.files)
    return (*map(Freeze, freeze), *map(Remove, remove))
