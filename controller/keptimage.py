"""Which image a sandbox goes on with while its base has come to mean another one. Pure.

A name means one thing in a home, and one sandbox's look-up changes that for all. A VM that runs is
its own sandbox's business: it keeps what it was started from until that asks for something else.
"""

from __future__ import annotations

from controller.entry import Entry
from reconcilers.accel import Choice
from reconcilers.host import launch_key
from reconcilers.launched import image_of
from reconcilers.launchrecord import LaunchRecord
from specs import recipe
from specs.boxfile import Boxfile
from specs.conditions import Reason
from specs.imagename import moves


def kept_image(entry: Entry, box: Boxfile | None) -> str:
    """The digest of the image that its VM was started from, as long as it is to keep it; empty
    where what the base means by now counts.

    That is so for a VM that is to be another one anyway, because `box` says so or has looked its
    base up, and after a `box build --pull` of this sandbox which found another image.
    """
    if entry.live is None or box is None or entry.looked_up:
        return ""
    record = entry.live.record
    if not asks_the_same(record, box) or not (moves(box.base) or recipe.steps(box)):
        return ""
    digest = record.image_digest
    if entry.asked_image not in ("", digest):
        return ""
    # The VM of a run has a key that nothing else has, and a spec that does not change.
    if entry.run is None and launch_key(box, _as_started(record), digest) != record.key:
        return ""
    return digest


def asks_the_same(record: LaunchRecord, box: Boxfile) -> bool:
    """Whether `box` asks for the image that this VM was started for. A record that does not say (of
    an older version) is of none.
    """
    return bool(record.image_digest) and record.image_asked == image_of(box)


def _as_started(record: LaunchRecord) -> Choice:
    return Choice(record.accel, Reason.Accepted, "")
