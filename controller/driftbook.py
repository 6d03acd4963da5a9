"""Keeps account of drift: what differed, since when, what was done, and when it was seen to be
right again. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from controller.entry import DRIFT_KEPT
from reconcilers.steps import Step
from specs.drift import Drift

TAG = "base.tag"
"""The field of a drift that no step mends: it lasts until somebody pulls, or the tag moves back."""


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


def entered(book: Sequence[Drift], drift: Drift) -> tuple[list[Drift], list[Drift]]:
    """The book with `drift` open, and, as a list, that if it is new. One of the same field with
    other values is closed.
    """
    same = (drift.desired, drift.observed)
    still = [d for d in book if d.field == drift.field and not d.corrected]
    if any((each.desired, each.observed) == same for each in still):
        return list(book), []
    closed = [
        replace(d, corrected=drift.first_seen) if d.field == drift.field and not d.corrected else d
        for d in book
    ]
    return [*closed, drift][-DRIFT_KEPT:], [drift]


def corrected(
    book: Sequence[Drift], now: str, *, lasting: bool = False
) -> tuple[list[Drift], list[Drift]]:
    """The host agrees again: the book with every difference closed that steps mend, or with
    `lasting` those that none does; and which were open.
    """
    updated = [
        replace(d, corrected=now) if not d.corrected and (d.field == TAG) is lasting else d
        for d in book
    ]
    return updated, [new for new, old in zip(updated, book, strict=True) if new is not old]


def is_open(book: Iterable[Drift]) -> list[Drift]:
    return [drift for drift in book if not drift.corrected]
