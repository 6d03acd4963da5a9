"""Enters into the book of a sandbox what a pass found different, and what is right again, and tells
of it. What is no drift is decided here: what a Boxfile, policy.toml or a run asks for is none.
"""

from __future__ import annotations

from controller import driftbook
from controller.clock import timestamp
from controller.entry import Entry
from controller.inventory import Inventory
from reconcilers.steps import Step


def note_drift(inventory: Inventory, entry: Entry, todo: tuple[Step, ...]) -> None:
    """What the steps of a pass are about."""
    if entry.removing or (entry.run is not None and (entry.run.over or not entry.run.is_up)):
        return
    if entry.converged_generation != entry.record.generation:
        changed = entry.changed
        todo = tuple(each for each in todo if each.unasked and not (changed and each.egress))
    if entry.over_ceiling or (entry.choice is not None and entry.choice.refused):
        return  # policy.toml or the host changed its mind; that is no drift of the host
    entry.drift, new = driftbook.found(entry.drift, todo, timestamp())
    for drift in new:
        text = f"{drift.field}: want {drift.desired}, saw {drift.observed}; {drift.action}"
        inventory.event(entry, "drift", text)


def settle(inventory: Inventory, entry: Entry) -> None:
    """All is as it should be."""
    entry.out_of_memory = False
    entry.drift, closed = driftbook.corrected(entry.drift, timestamp())
    for drift in closed:
        inventory.event(entry, "mended", f"{drift.field}: {drift.action}")
