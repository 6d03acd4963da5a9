"""What one sandbox should be now: its last good spec, seen through ceiling, host and time.

It asks the host which accelerator and which image the spec means here, and changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from controller.entry import Entry
from controller.inventory import Inventory
from controller.keptimage import kept_image
from controller.prune import ERASE_DELAY_SECONDS
from reconcilers.accel import Choice
from reconcilers.builds import recipes
from reconcilers.host import Host, features_of, launch_key
from reconcilers.plan import Desired
from specs.boxfile import Accel, Boxfile, OnDelete, Pull, State
from specs.ceiling import Ceiling
from specs.conditions import Reason
from specs.errors import HostError
from specs.imagename import moves

# A guest that does not answer this often in a row is given up, and its VM replaced.
SILENT_LIMIT = 3


def wanted(entry: Entry) -> Boxfile | None:
    """The spec to converge to; stopped when policy.toml forbids even the last good one."""
    box = entry.box
    if box is not None and entry.over_ceiling:
        return box.model_copy(update={"state": State.stopped})
    return box


async def desired(entry: Entry, box: Boxfile | None, host: Host, inventory: Inventory) -> Desired:
    """`box` as the planner takes it. Raises HostError when this host cannot run it at all."""
    if box is None:
        # A name that never had a good Boxfile is not being removed; nothing of it is moved.
        return Desired(None, erase=_erase(entry, inventory) if entry.removing else None)
    if box.state is not State.running:
        return Desired(box)
    former, entry.choice = entry.choice, await choose(box, host, inventory)
    if entry.choice.refused:
        if entry.choice != former:
            inventory.event(entry, "refused", f"{entry.choice.reason}: {entry.choice.message}")
        return Desired(None, keep_identity=True)
    if entry.refused_mounts:
        held = as_started(entry, "; ".join(map(str, entry.refused_mounts)))
        if held is not None and held.box is not None and held.box.mounts != box.mounts:
            return held  # the VM that runs has other mounts, which it may keep
        first = entry.refused_mounts[0]
        because = (f"mounts[{first.index}].host", first.host, first.why)
        return Desired(None, keep_identity=True, because=because)
    kept = kept_image(entry, box)
    digest = kept or recipes.digest_for(host.images, box, network=host.steps_have_network())
    if entry.live is not None and digest == entry.live.record.image_digest:
        entry.asked_image = ""  # it has what was asked for, or what others have found since
    key = launch_key(box, entry.choice, digest) if digest else ""
    return Desired(
        box,
        entry.run.key(key) if entry.run and key else key,
        image=digest,
        look_up=box.pull is Pull.always and moves(box.base) and not entry.looked_up,
        suspended=entry.record.suspended,
        give_up_guest=entry.silent >= SILENT_LIMIT,
    )


def build_network(inventory: Inventory) -> bool:
    """Not while policy.toml, which may forbid it, cannot be read."""
    return isinstance(inventory.ceiling, Ceiling) and inventory.ceiling.build_network


def as_started(entry: Entry, why: str) -> Desired | None:
    """What the VM that runs was started as, while something newer cannot be had because of `why`;
    None when none runs.
    """
    started = entry.started
    if entry.live is None or started is None:
        return None
    return Desired(started, entry.live.record.key, keep_identity=True, held=why)


async def choose(box: Boxfile, host: Host, inventory: Inventory) -> Choice:
    """How its VM may run here, also by policy.toml. Raises HostError."""
    problems = await asyncio.to_thread(host.problems, box)
    if problems:
        raise HostError("; ".join(problems))
    # With what this very guest needs: a kernel that lacks it is found before a VM is stopped.
    boot = await asyncio.to_thread(host.boot, features_of(box))
    choice = await host.choose_accel(box, boot)
    # Only now is it known that `accel: auto` means emulation here.
    if choice.accel == "tcg" and not choice.refused and (why := no_emulation(inventory, box)):
        return replace(choice, reason=Reason.RefusedByPolicy, message=why, refused=True)
    return choice


def no_emulation(inventory: Inventory, box: Boxfile) -> str:
    """Why policy.toml forbids to emulate a machine of `box`; empty where it does not. One that
    cannot be read may forbid it.
    """
    ceiling = inventory.ceiling
    if isinstance(ceiling, Ceiling):
        return ceiling.refuse_emulation()
    return f"policy.toml cannot be read: {ceiling}" if box.accel is Accel.auto else ""


def _erase(entry: Entry, inventory: Inventory) -> bool | None:
    """True: erase; False: set aside; None: wait, the file may come back."""
    spec = entry.record.spec
    if spec is None or (spec.data.on_delete is OnDelete.keep and not entry.erase_by_hand):
        return False
    # Also for a Boxfile that was accepted before policy.toml forbade it, or became unreadable.
    if not (isinstance(inventory.ceiling, Ceiling) and inventory.ceiling.allow_erase):
        return False
    if inventory.vanishing.reason or erase_in(entry) > 0:
        return None
    return True


def erase_in(entry: Entry) -> float:
    """Seconds until the data may be erased. A restart begins the wait anew."""
    since = entry.gone_since
    return ERASE_DELAY_SECONDS - (time.monotonic() - since) if since is not None else 0.0
