"""Which sandboxes may be removed because their Boxfile is gone.

Pure, and the one place that decides it. A missing file is weak evidence: a folder that is not
mounted, an editor between two renames and a slip of `rm` look alike. So nothing is removed on a
doubtful sign, and a human's confirmation never covers a folder that cannot be read. It must not
touch disks or VMs.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from controller.records import Record

# Some editors move the old file away before they write the new one.
SETTLE_SECONDS = 2.0
# Files that vanish within this time of each other vanished together.
BURST_SECONDS = 60.0
BURST_ABOVE = 2
# How long `data.on_delete: erase` waits after the file vanished.
ERASE_DELAY_SECONDS = 60.0


@dataclass(frozen=True)
class Decision:
    """What to do with the sandboxes whose file is missing.

    `remove`: remove now. `held`: keep; `reason` says why, in one sentence. `waiting`: ask again
    after `recheck_after` seconds. Every missing name is in exactly one of the three. `marked`: the
    caller makes `Record.held` durable for exactly these, so that a restart does not forget the
    hold. `adopt_folder`: record this folder as the one the inventory belongs to.
    """

    remove: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    marked: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    recheck_after: float | None = None
    adopt_folder: bool = False
    reason: str = ""


class VanishTimes:
    """When each missing file was first found missing by this process, on the monotonic clock.

    Kept in memory on purpose: after a restart every missing file counts as having vanished just
    now, so neither a jump of the wall clock nor a restart makes anything older than it is.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def update(self, inventory: Set[str], present: Set[str], now: float) -> Mapping[str, float]:
        """Note one complete scan; the times to give to `decide`.

        Call it only for a folder that could be read. A name that was removed is remembered for
        BURST_SECONDS, so that files vanishing one by one are counted together.
        """
        for name in inventory - present:
            self._since.setdefault(name, now)
        self._since = {
            name: since
            for name, since in self._since.items()
            if name not in present and (name in inventory or now - since <= BURST_SECONDS)
        }
        return dict(self._since)


def decide(
    inventory: Mapping[str, Record],
    present: Set[str],
    *,
    folder_ok: bool,
    same_folder: bool,
    recent_vanish: Mapping[str, float],
    confirmed: bool,
    now: float,
) -> Decision:
    """Judge the names of `inventory` that are not `present`.

    `recent_vanish` are the monotonic times of VanishTimes.update, `now` the same clock, in seconds;
    a missing name without a time vanished now. `same_folder`: device and inode are those recorded.
    """
    missing = frozenset(inventory) - present
    held_before = frozenset(name for name in missing if inventory[name].held)
    if not folder_ok:
        return Decision(
            held=frozenset(inventory),
            marked=frozenset(name for name in inventory if inventory[name].held),
            reason="the watched folder cannot be read; nothing is removed until it is back",
        )
    if not same_folder and missing and not confirmed:
        return Decision(
            held=missing,
            marked=held_before,
            reason="the watched folder is another one than before (device or inode differ); nothing"
            " is removed until the old one is back, this one holds every Boxfile, or"
            " box prune --confirm",
        )
    if confirmed:
        return Decision(remove=missing, adopt_folder=not same_folder)
    if held_before:
        return Decision(
            held=missing,
            marked=missing,
            reason=f"{listed(missing)} held since many Boxfiles vanished at once; put the files"
            " back, or confirm with box prune --confirm",
        )
    burst = burst_of(frozenset(inventory), missing, recent_vanish, now)
    if burst:
        total = len(frozenset(inventory) | burst)
        return Decision(
            held=missing,
            marked=missing,
            reason=f"{len(burst)} of {total} Boxfiles vanished within {BURST_SECONDS:.0f} s; put"
            " the files back, or confirm with box prune --confirm",
        )
    ages = {name: now - recent_vanish.get(name, now) for name in missing}
    waiting = frozenset(name for name, age in ages.items() if age < SETTLE_SECONDS)
    recheck = max((SETTLE_SECONDS - ages[name] for name in waiting), default=None)
    return Decision(
        remove=missing - waiting,
        waiting=waiting,
        recheck_after=recheck,
        adopt_folder=not same_folder,
    )


def burst_of(
    inventory: frozenset[str],
    missing: frozenset[str],
    recent_vanish: Mapping[str, float],
    now: float,
) -> frozenset[str]:
    """The names that vanished together, when they are more than BURST_ABOVE and over half of all.

    Names that are already removed count too, in the burst and in the total. The window ends at the
    last vanishing, not now: files that are still missing do not become a small number by waiting.
    """
    times = {name: recent_vanish.get(name, now) for name in missing}
    times |= {name: at for name, at in recent_vanish.items() if name not in inventory}
    ordered = sorted(times, key=lambda name: times[name])
    first = 0
    best: list[str] = []
    for last in range(len(ordered)):
        while times[ordered[last]] - times[ordered[first]] > BURST_SECONDS:
            first += 1
        if last - first + 1 > len(best):
            best = ordered[first : last + 1]
    burst = frozenset(best)
    many = len(burst) > BURST_ABOVE and 2 * len(burst) > len(inventory | burst)
    return burst if many and burst & missing else frozenset()


def listed(names: frozenset[str], most: int = 5) -> str:
    shown = sorted(names)[:most]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
