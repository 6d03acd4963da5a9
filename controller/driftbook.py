"""Keeps account of drift: what differed, since when, what was done, and when it was seen to be
right again. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from controller.entry import DRIFT_KEPT
from reconcilers.steps import Step
from specs.drift import Drift


def found(
    book: Sequence[Drift], steps: Iterable[Step], now: str
) -> tuple[list[Drift], list[Drift]]:
    """The book with the differences behind `steps` entered, and those that are new."""
    updated = list(book)
    new: list[Drift] = []
    for step in steps:
        if step.consequence or any(d.field == step.field and not d.corrected for d in updated):
            continue
        drift = Drift(step.field, step.desired, step.observed, now, step.describe())
        updated.append(drift)
        new.append(drift)
    return updated[-DRIFT_KEPT:], new


def corrected(book: Sequence[Drift], now: str) -> tuple[list[Drift], list[Drift]]:
    """The host agrees again: the book with every difference closed, and those that were open."""
    closed = [replace(d, corrected=now) for d in book if not d.corrected]
    return [d if d.corrected else replace(d, corrected=now) for d in book], closed


def is_open(book: Iterable[Drift]) -> list[Drift]:
    return [drift for drift in book if not drift.corrected]
