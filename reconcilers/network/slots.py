"""Finds a sandbox its slot of addresses, and finds it again.

A slot in use is seen on the host: the address on a link of ours says which it is. Nothing is
written down, so nothing can be lost. A lock for the whole host makes looking and taking one step.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from reconcilers import hostlock
from reconcilers.network import spaces
from reconcilers.network.addresses import POOL, SLOTS, addresses, first_slot, slot_of
from reconcilers.network.routing import Routing
from specs.errors import HostError
from specs.names import INTERFACE_PREFIX, HostNames

LOCK = Path("/run/box/network.lock")
# seconds; a network is made in less than one, and all that start at once wait for each other
_LOCK_WAIT = 60.0


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One at a time on the whole host (blocking). Raises HostError."""
    with contextlib.ExitStack() as held:
        try:
            LOCK.parent.mkdir(mode=0o755, exist_ok=True)
            held.enter_context(hostlock.held(LOCK, _LOCK_WAIT))
        except OSError as error:
            raise HostError(f"{LOCK} cannot be opened: {error.strerror}") from error
        yield


def live_slot(names: HostNames) -> int | None:
    """The slot that the sandbox's own links say they have; None when there are none."""
    found = _slot_on(names.interface("h"))
    if found is None and spaces.exists(names.interface("m")):
        found = spaces.inside(names.interface("m"), lambda: _slot_on(names.interface("u")))
    return found


def free_slot(names: HostNames) -> int:
    """A slot that nobody has; call it `locked`. Raises HostError when the host uses them all."""
    taken, foreign = _in_use()
    first = first_slot(names)
    for offset in range(SLOTS):
        slot = (first + offset) % SLOTS
        if slot in taken:
            continue
        block = addresses(names, slot).block
        if not any(each.overlaps(block) for each in foreign):
            return slot
    shown = ", ".join(map(str, foreign[:3])) or "other sandboxes"
    raise HostError(
        f"no addresses of {POOL} are left for it: {shown} use them",
        fix=f"remove the host's own routes within {POOL}",
    )


def _slot_on(device: str) -> int | None:
    try:
        index = socket.if_nametoindex(device)
    except OSError:
        return None
    with Routing() as kernel:
        for each in kernel.addresses():
            if each.device == index and each.family == socket.AF_INET:
                slot = slot_of(IPv4Address(each.text))
                if slot is not None:
                    return slot
    return None


def _in_use() -> tuple[set[int], list[IPv4Network]]:
    """Slots of all sandboxes on the host, and routes within the pool that are none of ours."""
    taken: set[int] = set()
    foreign: list[IPv4Network] = []
    with Routing() as kernel:
        ours = {each.index for each in kernel.links() if each.name.startswith(INTERFACE_PREFIX)}
        for address in kernel.addresses():
            if address.device in ours and address.family == socket.AF_INET:
                slot = slot_of(IPv4Address(address.text))
                if slot is not None:
                    taken.add(slot)
        for route in kernel.routes():
            if route.length == 0 or route.device in ours or route.family != socket.AF_INET:
                continue
            network = IPv4Network(route.to)
            if network.overlaps(POOL):
                foreign.append(network)
    return taken, foreign
