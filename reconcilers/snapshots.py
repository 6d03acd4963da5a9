"""What the verbs do to a disk: snapshot, restore, reset, forget. Blocking, and all or nothing.

Whoever calls makes sure that no VMM has the disk open and that no pass runs over its sandbox. A
full disk or a crash leaves the former disk in force and no snapshot that is only partly there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from reconcilers import chain, layers
from reconcilers.chain import Chain
from reconcilers.facts import MIB
from specs.errors import HostError


@dataclass(frozen=True)
class Moment:
    """When something is done: `taken` as ISO 8601 in UTC, `word` as part of a label."""

    taken: str
    word: str


def now() -> Moment:
    """This moment."""
    found = datetime.now(UTC)
    taken = found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Moment(taken, found.strftime("%Y-%m-%d-%H%M%S"))


@dataclass(frozen=True)
class Listed:
    """One snapshot, for people. `taken` is an ISO 8601 UTC time; sizes are in bytes: of the disk as
    the guest saw it, and what deleting the snapshot would free now.
    """

    label: str
    taken: str
    disk_bytes: int
    frees_bytes: int


def listed(folder: Path) -> list[Listed]:
    """The snapshots of the disk in `folder`, oldest first. Raises HostError, OSError."""
    read = layers.read(folder)
    if read is None:
        return []
    found = read[0]
    rows = []
    for each in found.snapshots:
        without = chain.without_snapshot(found, each.label)
        freed = sum(layers.held_alone(folder / file) for file in found.files - without.files)
        rows.append(Listed(each.label, each.taken, each.size_mib * MIB, freed))
    return rows


def read(folder: Path) -> Chain:
    """The chain of the disk in `folder`. Raises HostError where there is none to rely on, OSError.

    One that was made up for a lost chain.toml is none: the next pass writes it down.
    """
    found = layers.read(folder)
    if found is None:
        raise HostError(
            f"{folder.name} has no data disk yet", fix="it is made with the first start"
        )
    if not found[1]:
        raise HostError(
            f"{folder / layers.CHAIN} is lost or garbled and is about to be written again",
            fix="try again in a moment",
        )
    return found[0]


def is_full(folder: Path) -> bool:
    """Whether no layer more fits. Raises HostError, OSError."""
    return len(read(folder).layers) >= chain.LAYERS_MAX


def take(folder: Path, label: str, moment: Moment) -> str:
    """Freeze what is in the disk now; the label it got. An empty `label` is the moment's.

    Raises BadName, Conflict, HostError, OSError.
    """
    old = read(folder)
    label = label or free_label(old, moment.word)
    new = _frozen(folder, old, label, moment)
    layers.change(folder, old, new)
    return label


def restore(folder: Path, label: str, moment: Moment, *, discard: bool) -> str:
    """Put back what `label` froze. What is there now is lost with `discard`, else it is first
    frozen under the label that is returned.

    Raises UsageError when there is no such snapshot, HostError, OSError.
    """
    old = read(folder)
    old.snapshot(label)
    kept, size = old, layers.size_mib(folder, old)
    before = "" if discard else free_label(old, f"before-restore-{moment.word}")
    if before:
        kept = _frozen(folder, old, before, moment)
    layers.change(folder, old, chain.restored(kept, label, layers.new_file("qcow2"), size))
    return before


def reset(folder: Path, size_mib: int, moment: Moment, *, discard: bool) -> str:
    """Begin an empty disk of `size_mib` MiB; snapshots stay. As `restore` for what is there now.

    Raises HostError, CommandError, OSError.
    """
    old = read(folder)
    kept, before = old, "" if discard else free_label(old, f"before-reset-{moment.word}")
    if before:
        kept = _frozen(folder, old, before, moment)
    new = chain.emptied(kept, layers.new_file("raw"))
    layers.change(folder, old, new, base_mib=size_mib)
    return before


def fork(parent: Path, folder: Path, size_mib: int, moment: Moment) -> None:
    """Make a disk of `size_mib` MiB in `folder` that begins with what `parent` holds now.

    What the parent has written so far is frozen, and both go on with tops of their own. Raises
    HostError, OSError.
    """
    old = read(parent)
    have = layers.size_mib(parent, old)
    if size_mib < have:
        raise HostError(
            f"data.size_mib is {size_mib}, and the disk of {old.sandbox} that it is a fork of has "
            f"{have} MiB",
            fix=f"write data: {{size_mib: {have}}} or more into the Boxfile of {folder.name}",
        )
    if not layers.is_empty(parent, old.top):
        frozen = chain.with_top(old, layers.new_file("qcow2"), have)
        layers.change(parent, old, frozen)
        old = frozen
    made = chain.forked(old, folder.name, moment.taken, layers.new_file("qcow2"), size_mib)
    layers.make_fork(parent, folder, made)


def forget(folder: Path, label: str) -> None:
    """Remove a snapshot, and the layers that nothing else needs. Raises UsageError, HostError,
    OSError.
    """
    old = read(folder)
    layers.change(folder, old, chain.without_snapshot(old, label))


def _frozen(folder: Path, old: Chain, label: str, moment: Moment) -> Chain:
    size = layers.size_mib(folder, old)
    top = "" if layers.is_empty(folder, old.top) else layers.new_file("qcow2")
    return chain.with_snapshot(old, label, moment.taken, top, size)


def free_label(old: Chain, wanted: str) -> str:
    """`wanted`, or with a number where a snapshot has that label."""
    known = {each.label for each in old.snapshots}
    number = 1
    label = wanted
    while label in known:
        number += 1
        label = f"{wanted}-{number}"
    return label
