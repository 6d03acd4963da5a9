"""Makes one layer of several that nothing needs apart, so that a chain does not grow for ever.

What is in them was written by guests, so no program of the host reads it: a VMM in the jail of any
other, without a guest, takes what the upper ones hold into the lowest. As long as all of them are
in the chain that lowest one may have any part of that already, so a crash at any moment changes
nothing: what is seen through the upper ones is the same.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

from reconcilers import chain, layers, microvm, qmp
from reconcilers.chain import Chain, Layer
from reconcilers.guestfiles import helper, views
from reconcilers.host import Host
from reconcilers.inthread import to_end
from reconcilers.throwaway import TRANSFERS, Throwaways
from specs.boxfile import Boxfile
from specs.errors import ChannelError, HostError
from specs.text import visible

JOB = "merge"
LOOK_SECONDS = 0.05
ANSWER_SECONDS = 10.0  # for the monitor to be there


async def merge(host: Host, box: Boxfile) -> int:
    """Merge what can be merged of `box`'s disk; how many layers fewer it has. Nothing else may use
    the disk meanwhile, which is the caller's to see to.

    Raises BoxError, OSError; the disk then is as it was, or has fewer layers already.
    """
    folder, fewer = host.layout.disks(box.name), 0
    while True:
        found = await asyncio.to_thread(layers.read, folder)
        run = _run_of(folder, found[0]) if found is not None and found[1] else ()
        if found is None or not run:
            return fewer
        await _into_one(host, box, folder, found[0], run)
        fewer += len(run) - 1


def _run_of(folder: Path, found: Chain) -> tuple[Layer, ...]:
    """What of it may become one layer, which a fork must not have, too."""
    frozen = found.frozen
    shared = frozenset(file for file in frozen if (folder / file).lstat().st_nlink > 1)
    return chain.mergeable(found, shared)


async def _into_one(
    host: Host, box: Boxfile, folder: Path, found: Chain, run: tuple[Layer, ...]
) -> None:
    view = _up_to(found, run[-1])
    size_mib = max(layer.size_mib for layer in run)
    disk = views.on_top(folder, view[:-1], folder / run[-1].file, size_mib)
    into = view.index(run[0])
    try:
        await to_end(lambda: layers.set_mode(folder / run[0].file, layers.TOP_MODE))
        machines = Throwaways(host, TRANSFERS)
        work = await helper.work_on(machines, box, disk)
        async with machines.alone(work.box.name) as names:
            start = replace(await machines.prepared(names, work), merge_into=into)
            layout = machines.host.layout
            record, errors = await microvm.start(layout, start)
            try:
                monitor = layout.qmp_socket(names.sandbox)
                await _commit(monitor, f"layer{into}", disk.size)
            finally:
                os.close(errors)
                await asyncio.shield(microvm.kill(record.pid, record.start_time))
        await to_end(lambda: layers.sync(folder / run[0].file))
    except BaseException:
        await to_end(lambda: layers.tidy(folder))
        raise
    await to_end(lambda: layers.change(folder, found, chain.merged(found, run)))


def _up_to(found: Chain, last: Layer) -> tuple[Layer, ...]:
    """The layers from the lowest to `last`, as whatever names it has them."""
    begun = found.origin.held if found.origin is not None else ()
    for view in (found.layers, *begun, *(each.layers for each in found.snapshots)):
        if last in view:
            return view[: view.index(last) + 1]
    raise HostError(f"nothing of {found.sandbox} names {last.file}")


async def _commit(monitor: Path, into: str, size: int) -> None:
    """Have the VMM take all above `into` into it. Raises ChannelError, HostError."""
    limit = time.monotonic() + helper.LEAST_SECONDS + size / helper.BYTES_A_SECOND
    wanted = {"job-id": JOB, "device": "data", "top-node": "data", "base-node": into}
    await _patient(monitor, "block-commit", {**wanted, "auto-dismiss": False})
    while time.monotonic() < limit:
        status, why = await _status(monitor)
        if status == "ready":
            await qmp.command(monitor, "job-complete", {"id": JOB})
        elif status == "concluded":
            if why:
                raise HostError(f"layers cannot be merged: {visible(why, 200)}")
            return
        await asyncio.sleep(LOOK_SECONDS)
    raise HostError("merging layers takes too long and was given up")


async def _patient(monitor: Path, name: str, arguments: dict[str, object]) -> None:
    """The first command: QEMU may only just have begun. One that is asked at that very moment may
    stand still until it is asked again: two of its threads wait for the same connection then.
    """
    limit = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            await qmp.command(monitor, "query-status")
            break
        except ChannelError:
            if time.monotonic() > limit:
                raise
            await asyncio.sleep(LOOK_SECONDS)
    await qmp.command(monitor, name, arguments)


async def _status(monitor: Path) -> tuple[str, str]:
    """Of our job: its status, and what went wrong with it."""
    jobs = await qmp.command(monitor, "query-jobs")
    if isinstance(jobs, list):
        for job in jobs:
            if isinstance(job, dict) and job.get("id") == JOB:
                return str(job.get("status", "")), str(job.get("error", ""))
    raise ChannelError("the VMM does not know what it was told to do")
