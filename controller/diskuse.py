"""Who may touch the disk of a sandbox: one verb at a time, while neither a pass nor a VM has it.

Whether a VM has it is read off the host, not remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from controller.entry import Entry, known
from controller.inventory import Inventory
from reconcilers import launchrecord, procfs
from reconcilers.host import Host
from specs.boxfile import State
from specs.ceiling import Ceiling
from specs.errors import NotUp, RefusedByPolicy, StillRunning

PASS_SECONDS = 20.0
"""How long a pass that is going on may keep a verb waiting; a client waits for a minute."""


class DiskUse:
    """The disks of one home. `alone` holds a name, `wake` asks for a pass over it."""

    def __init__(
        self,
        host: Host,
        inventory: Inventory,
        alone: Callable[[str], AbstractAsyncContextManager[None]],
        wake: Callable[[str], None],
    ) -> None:
        self._host = host
        self._inventory = inventory
        self._alone = alone
        self._wake = wake
        self._held: dict[str, str] = {}

    def entry(self, name: str) -> Entry:
        """A sandbox that exists and is not being deleted. Raises NoSandbox."""
        return known(self._inventory.entries, name, declared=True)

    @asynccontextmanager
    async def held(
        self, name: str, what: str = "its disk is being changed"
    ) -> AsyncIterator[Entry]:
        """No pass and no VM has its disk while this is held; a pass is asked for afterwards. `what`
        says why, to whoever waits in vain for the same.

        Raises NoSandbox, StillRunning, or NotUp for one that is busy for too long.
        """
        self._refuse_running(name)  # at once: a pass over a VM that boots takes its time
        alone = self._alone(name)
        try:
            async with asyncio.timeout(PASS_SECONDS):
                await alone.__aenter__()
        except TimeoutError:
            going_on = self._held.get(name, "it is being started, stopped or mended")
            raise NotUp(f"{name} is busy: {going_on}", fix="try again when that is done") from None
        try:
            self._held[name] = what
            self._refuse_running(name)
            await asyncio.to_thread(self._refuse_strays, name)
            yield self.entry(name)
        finally:
            self._held.pop(name, None)
            await alone.__aexit__(None, None, None)
            self._wake(name)

    def _refuse_running(self, name: str) -> None:
        entry = self.entry(name)
        if entry.run is not None:
            raise StillRunning(
                f"a command of box run has the disk of {name} open",
                fix=f"wait until it has ended (box get {name} shows it), or end it",
            )
        record = launchrecord.read(self._host.layout.launch_record(name))
        lives = record is not None and procfs.alive(record.pid, record.start_time) is not None
        if lives or entry.live is not None:
            raise self._running(name)

    def _refuse_strays(self, name: str) -> None:
        """A VMM that no record describes has the disk open as well (blocking)."""
        names, binary = self._host.names(name), self._host.facts.binary
        group = self._host.cgroup(names)
        found = set(group.procs()) if group.exists() else set()
        if binary is not None:
            facts = binary.stat()
            known = procfs.marked_processes(names.instance, (facts.st_dev, facts.st_ino))
            found |= known.get(name, set())
        if found:
            raise self._running(name)

    def _running(self, name: str) -> StillRunning:
        spec = self.entry(name).record.spec
        if spec is not None and spec.state is State.stopped:
            return StillRunning(
                f"the VM of {name} is being stopped and has its disk open",
                fix="try again in a moment; box apply --wait waits for it",
            )
        return StillRunning(
            f"the VM of {name} runs and has its disk open",
            fix=f"write state: stopped into the Boxfile of {name}, box apply -f it --wait, then "
            "this again, and take the line out",
        )


def require_walls(entry: Entry, inventory: Inventory) -> None:
    """Before a helper machine is started with the isolation and the accelerator of its Boxfile.
    Raises RefusedByPolicy.
    """
    ceiling, spec = inventory.ceiling, entry.record.spec
    if not isinstance(ceiling, Ceiling) or spec is None:
        return  # what was accepted goes on meanwhile
    if broken := ceiling.weak_walls(spec):
        why = "; ".join(broken)
        raise RefusedByPolicy(
            f"policy.toml forbids a machine as the Boxfile of {spec.name} says: {why}",
            fix=f"change the Boxfile of {spec.name}, or policy.toml",
        )


def forks_waiting_for(name: str, inventory: Inventory) -> list[str]:
    """Sandboxes that could not be branched from `name`, whose VM had the disk."""
    return [
        other
        for other, entry in inventory.entries.items()
        if entry.attempts and entry.box is not None and entry.box.fork_of == name
    ]
