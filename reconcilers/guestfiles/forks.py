"""A fork compared with what it began with, and its changes brought into its parent.

Two machines, one after the other: the first sees the fork and its beginning and writes down what
differs; the second gets that list and the parent. So no kernel that has mounted what the fork wrote
ever has the parent's disk. Whoever calls holds the names of all that take part.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from agent.merged import Merged
from agent.process import GuestError
from reconcilers import chain, layers, snapshots
from reconcilers.chain import LAYERS_MAX, Chain, Origin
from reconcilers.facts import Disk
from reconcilers.guestfiles import helper, views
from reconcilers.guestfiles.helper import Action, Job
from reconcilers.host import Host
from reconcilers.inthread import to_end
from reconcilers.snapshots import Moment
from specs.boxfile import Boxfile
from specs.errors import HostError, UsageError


@dataclass(frozen=True)
class Outcome:
    """How it went. `kept`: the snapshot of what the parent had, empty where nothing was changed."""

    merged: Merged
    kept: str = ""


def origin_of(found: Chain) -> Origin:
    """What a fork began with. Raises UsageError for what is none."""
    if found.origin is None:
        raise UsageError(
            f"{found.sandbox} is no fork, so there is nothing to compare it with",
            fix="box fork NAME FORK makes one",
        )
    return found.origin


async def compare(host: Host, fork: Boxfile, archive: int, *, with_data: bool) -> int:
    """Write what `fork` changed to the file behind `archive`; how many changes, by the guest's
    word. Raises UsageError, and what `helper.run` raises.
    """
    folder = host.layout.disks(fork.name)
    found = await asyncio.to_thread(snapshots.read, folder)
    parent = await asyncio.to_thread(_read, host.layout.disks(origin_of(found).of))
    with contextlib.ExitStack() as opened:
        base = opened.enter_context(_base(host, folder, found, parent))
        size = layers.size_mib(folder, found)
        scratch = host.layout.transfers
        disk = opened.enter_context(views.thrown_away(scratch, folder, found.layers, size))
        os.ftruncate(archive, helper.archive_bytes(disk))
        job = Job(Action.CHANGES, archive, disk, base, with_data=with_data)
        told = await helper.run(host, fork, job)
    assert isinstance(told, int)
    return told


async def merge(
    host: Host, parent: Boxfile, fork: str, archive: int, *, theirs: bool, dry_run: bool
) -> Outcome:
    """Bring the changes behind `archive` into the disk of `parent`: all of them, or none where
    there are conflicts and not `theirs`, or with `dry_run`. Raises what `helper.run` raises, with
    the former disk in force.
    """
    folder, forks = host.layout.disks(parent.name), host.layout.disks(fork)
    old = await asyncio.to_thread(snapshots.read, folder)
    moment = snapshots.now()
    label = snapshots.free_label(old, f"before-apply-{moment.word}")
    size = layers.size_mib(folder, old)
    job = Job(Action.MERGE, archive, theirs=theirs, dry_run=dry_run)
    if dry_run:
        with views.thrown_away(host.layout.transfers, folder, old.layers, size) as disk:
            return Outcome(await _told(host, parent, replace(job, disk=disk)))
    top = layers.new_file("qcow2")
    empty = layers.is_empty(folder, old.top)
    new = chain.applied(old, label, moment.taken, top, size, empty=empty)
    try:
        await to_end(lambda: layers.make_overlay(folder / top, size))
        disk = views.on_top(folder, new.layers[:-1], folder / top, size)
        found = await _told(host, parent, replace(job, disk=disk))
        if found.total and not theirs:
            return Outcome(found)
        if not found.taken:  # it has all of it
            has = chain.marked(old, top, new.layers[-2].file)  # the last that was written
            await to_end(lambda: _commit(folder, old, has, forks, top))
            return Outcome(found)
        await asyncio.to_thread(layers.sync, folder / top)
        await to_end(lambda: _commit(folder, old, new, forks, top))
        return Outcome(found, label)
    finally:
        await to_end(lambda: layers.tidy(folder))


async def _told(host: Host, box: Boxfile, job: Job) -> Merged:
    try:
        found = await helper.run(host, box, job)
    except GuestError as error:
        raise GuestError(
            f"{error.message}; {box.name} is as it was",
            fix="for want of room: a larger data.size_mib, or less in its /data",
        ) from error
    assert isinstance(found, Merged)
    return found


def _commit(folder: Path, old: Chain, new: Chain, fork: Path, mark: str) -> None:
    # First: what the fork is compared with is decided by what the parent is, so by one rename.
    rebase(fork, old, mark, snapshots.now())
    layers.change(folder, old, new)


def rebase(folder: Path, parent: Chain, mark: str, moment: Moment) -> None:
    """Compare the fork in `folder` with what it holds now, as long as its parent, whose disk still
    is `parent`, lies on `mark`. Where the fork's disk has as many layers as it may have, it
    stays as it is. Raises HostError, OSError.
    """
    old = snapshots.read(folder)
    empty = layers.is_empty(folder, old.top)
    if not empty and len(old.layers) >= LAYERS_MAX:
        return
    top = "" if empty else layers.new_file("qcow2")
    size = layers.size_mib(folder, old)
    layers.change(folder, old, chain.rebased(old, parent, mark, moment.taken, top, size))


def _read(folder: Path) -> Chain | None:
    """The disk of a parent, which may be gone or not to be understood."""
    with contextlib.suppress(HostError, OSError):
        if (found := layers.read(folder)) is not None:
            return found[0]
    return None


@contextlib.contextmanager
def _base(host: Host, folder: Path, found: Chain, parent: Chain | None) -> Iterator[Disk]:
    """What the fork in `folder` is compared with."""
    holds = origin_of(found).now(parent).layers
    size = views.size_mib(folder, holds)
    with views.thrown_away(host.layout.transfers, folder, holds, size) as disk:
        yield disk
