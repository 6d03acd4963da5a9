"""Blinds the product's readback: every reading says what is wanted, so that nothing is mended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from specs.reading import Reading
from tests.escape.saboteur import Product

# Every place that reads the walls of a sandbox, by the names through which they are called.
READERS = (
    "reconcilers.observe.read_confinement",
    "reconcilers.mending.read_vmm",
    "reconcilers.confinement.atlaunch.readings",
)


def blind(product: Product) -> None:
    for name in READERS:
        product.around(name, lambda read, *given, **named: believed(read(*given, **named)))
    product.around("reconcilers.disk.observe", _private)


def believed(readings: Iterable[Reading]) -> tuple[Reading, ...]:
    return tuple(replace(each, got=each.want, ok=True) for each in readings)


def _private(observe: Any, folder: Any) -> Any:
    found = observe(folder)
    return None if found is None else replace(found, private=True)
