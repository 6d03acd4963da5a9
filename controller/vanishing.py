"""Sandboxes whose Boxfile is gone: who may be removed, who is held, and what a human released.

Keeps what the prune guard needs from one scan to the next and asks it; it removes nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from controller import prune
from controller.entry import Entry
from controller.records import FolderIdentity
from controller.sources.folder import FolderScan
from controller.store import Store


class Vanishing:
    """The prune guard's memory of one watched folder."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._times = prune.VanishTimes()
        self._confirmed = False
        self._released: set[str] = set()
        self._held: frozenset[str] = frozenset()
        self.reason = ""
        self.recheck_after: float | None = None

    def confirm(self) -> None:
        """A human confirmed the removals that are held; the next scan lets them go."""
        self._confirmed = True

    def release(self, name: str) -> None:
        """Somebody deletes this one by its name: that needs no second confirmation."""
        self._released.add(name)

    def take_back(self, name: str) -> None:
        """The deletion by name did not happen."""
        self._released.discard(name)

    def held(self) -> frozenset[str]:
        """Held names that a confirmation would let go."""
        return self._held

    def folder_missing(self, reason: str) -> None:
        """A folder that cannot be read is nothing that anybody could confirm."""
        self._confirmed, self._held = False, frozenset()
        self.reason, self.recheck_after = reason, None

    def decide(
        self, found: FolderScan, folder: str, entries: Mapping[str, Entry]
    ) -> prune.Decision:
        """Judge every entry without a file. Records the folder once the inventory is its own."""
        now = time.monotonic()
        inventory = {n: e.record for n, e in entries.items() if not e.removing}
        known = self._store.load_folder()
        identity = FolderIdentity(folder, device=found.identity[0], inode=found.identity[1])
        same = isinstance(known, FolderIdentity) and known.identity == identity.identity
        free = self._free(inventory.keys() - found.present, entries) if same else frozenset()
        rest = {name: record for name, record in inventory.items() if name not in free}
        decision = prune.decide(
            rest,
            found.present,
            folder_ok=True,
            same_folder=same,
            recent_vanish=self._times.update(set(rest), found.present, now),
            confirmed=self._confirmed,
            now=now,
        )
        if self._confirmed:
            self._times = prune.VanishTimes()  # what was confirmed counts in no later burst
        self._confirmed, self._held = False, decision.held
        self._released &= inventory.keys()
        self.reason, self.recheck_after = decision.reason, decision.recheck_after
        if decision.adopt_folder:
            self._store.save_folder(identity)
        return replace(decision, remove=decision.remove | free)

    def _free(self, missing: set[str], entries: Mapping[str, Entry]) -> frozenset[str]:
        """Missing names that no guard has to keep: released by name, or never owning anything."""
        return frozenset(
            name for name in missing if name in self._released or entries[name].record.spec is None
        )
