"""Asks registries, rarely, whether a tag means another image by now: that is drift, and only told.

Nothing is replaced because of it, no pass waits for it, and what cannot be asked is no drift. One
tag is asked for at a time, and each not before its time; the first time some while after the
controller began, so that one which restarts all the time asks no more often.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from controller import driftbook
from controller.clock import timestamp
from controller.entry import Entry
from controller.inventory import Inventory
from controller.keptimage import asks_the_same
from reconcilers.images import fetch
from reconcilers.images.about import identity_of
from reconcilers.images.store import Images
from specs.boxfile import State
from specs.drift import Drift
from specs.errors import BoxError
from specs.imagename import Registry, parse_image

JITTER = 0.25
"""By this part of the time between two look-ups each of them comes later, at random."""
CLOSED = "the tag means the image that is used"
SHOWN = 19  # characters of a digest that are shown: `sha256:` and twelve


@dataclass
class _Tag:
    due: float
    means: str = ""  # when it was last asked, while `used` was used
    used: str = ""
    error: str = ""
    failing_since: str = ""


class TagWatch:
    """The tags of one home. `every` is in seconds, 0: never. `wake` asks for a pass, which
    reports.
    """

    def __init__(
        self, images: Images, inventory: Inventory, every: float, wake: Callable[[str], None]
    ) -> None:
        self._images = images
        self._inventory = inventory
        self._every = every
        self._wake = wake
        self._tags: dict[str, _Tag] = {}
        self._looking: asyncio.Task[None] | None = None
        self._stop = threading.Event()

    def at_scan(self) -> None:
        """Begin a look-up that is due, if none is going on. Never waits."""
        used = self._used()
        for name in self._tags.keys() - used.keys():
            del self._tags[name]
        now = time.monotonic()
        for name in used.keys() - self._tags.keys():
            self._tags[name] = _Tag(now + self._every * random.uniform(JITTER, 1))
        self._compare(used)
        if (
            not self._every
            or self._stop.is_set()
            or not (self._looking is None or self._looking.done())
        ):
            return
        due = [name for name, tag in self._tags.items() if tag.due <= now]
        if due:
            chosen = min(due, key=lambda name: self._tags[name].due)
            self._looking = asyncio.get_running_loop().create_task(self._look(used[chosen][0]))

    async def close(self) -> None:
        self._stop.set()
        if self._looking is not None:
            await asyncio.wait({self._looking})

    def _used(self) -> dict[str, tuple[Registry, list[Entry]]]:
        """The tags that running sandboxes start from, by name."""
        found: dict[str, tuple[Registry, list[Entry]]] = {}
        for entry in self._inventory.entries.values():
            box = entry.box
            if box is None or box.state is not State.running or entry.refused:
                continue
            name = parse_image(box.base)
            if isinstance(name, Registry) and not name.digest:
                found.setdefault(str(name), (name, []))[1].append(entry)
        return found

    async def _look(self, name: Registry) -> None:
        tag = self._tags[str(name)]
        tag.due = time.monotonic() + self._every * (1 + random.uniform(0, JITTER))
        used = self._known(str(name))
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._images.pool, fetch.resolve, name, self._stop)
        except (BoxError, OSError) as error:
            tag.error = error.message if isinstance(error, BoxError) else str(error)
            tag.failing_since = tag.failing_since or timestamp()
        else:
            tag.means, tag.used = found.digest, used
            tag.error = tag.failing_since = ""
        self._compare(self._used())

    def _compare(self, used: dict[str, tuple[Registry, list[Entry]]]) -> None:
        names = {entry.record.name: name for name, (_, users) in used.items() for entry in users}
        for entry in self._inventory.entries.values():
            name = names.get(entry.record.name, "")
            self._judge(entry, name, self._tags.get(name))

    def _judge(self, entry: Entry, name: str, tag: _Tag | None) -> None:
        error, changed = "", list[Drift]()
        if tag is not None and tag.error:
            error = f"{tag.error} (since {tag.failing_since})"
        means = uses = self._known(name) if tag is not None else ""
        if tag is not None and uses:
            uses = self._started_from(entry) or uses
            if tag.used == means:  # else what was pulled since it was asked is newer
                means = tag.means
        if means != uses:
            means, uses = means[:SHOWN], uses[:SHOWN]
            action = f"told only: box build {entry.record.name} --pull takes the other image"
            found = Drift(driftbook.TAG, means, uses, timestamp(), action)
            entry.drift, changed = driftbook.entered(entry.drift, found)
            for each in changed:
                text = f"{name} means {each.desired} by now, and {each.observed} is used"
                self._inventory.event(entry, "drift", text)
        else:
            entry.drift, changed = driftbook.corrected(entry.drift, timestamp(), lasting=True)
            if changed:
                self._inventory.event(entry, "mended", f"{changed[0].field}: {CLOSED}")
        if changed or entry.tag_error != error:
            entry.tag_error = error
            self._wake(entry.record.name)

    def _started_from(self, entry: Entry) -> str:
        """What the tag meant when the image of its VM was made; empty when that is not to stay."""
        if entry.live is None or entry.box is None or entry.asked_image:
            return ""
        record = entry.live.record
        if not asks_the_same(record, entry.box):
            return ""
        return identity_of(self._images.folder / record.image_digest)

    def _known(self, name: str) -> str:
        try:
            return self._images.meaning(name)
        except (BoxError, OSError):
            return ""  # the pass says so
