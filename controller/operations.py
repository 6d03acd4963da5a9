"""What the API asks for, done by the running controller.

Everything that changes desired state ends as a file in the watched folder, here as everywhere; only
commands, proofs and confirmations need the controller itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from agent.client import Hello
from agent.messages import ExecRequest
from agent.process import Process
from controller import apply, commands, mountrules
from controller.diskuse import DiskUse
from controller.diskverbs import DiskVerbs
from controller.entry import Entry, known
from controller.forks import Forks
from controller.imageverbs import ImageVerbs
from controller.inventory import Inventory
from controller.merging import Merging
from controller.runs import RunCommand, Runs
from controller.service import Applied
from controller.store import Store
from controller.transfers import Transfers
from reconcilers import proofs
from reconcilers.facts import Unknown
from reconcilers.host import Host
from reconcilers.launched import as_launched
from reconcilers.live import Live
from reconcilers.observe import (
    PING_TIMEOUT,
    confinement_of,
    disk_bytes,
    read_network,
    wanted_confinement,
)
from specs.boxfile import State
from specs.drift import Event
from specs.errors import BoxError, HostError, InvalidBoxfile, NotUp
from specs.parse import parse_boxfile
from specs.reading import Reading
from specs.report import Report

DISTRIBUTION = "box-controller"


async def _answering(live: Live) -> Hello | None:
    """What the guest said of itself when its channel was opened, if it still answers on it."""
    client = live.client  # a pass may drop it meanwhile
    if client is None:
        return None
    try:
        await client.ping(PING_TIMEOUT)
    except BoxError:
        return None
    return client.hello


def installed_version() -> str:
    """The version of the installed distribution; a bare source tree has none."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown (not installed)"


class Operations:
    """The controller as its socket sees it (`controller.service.Service`)."""

    def __init__(
        self,
        host: Host,
        inventory: Inventory,
        store: Store,
        *,
        rescan: Callable[[], None],
        wake: Callable[[str], None],
        use: DiskUse,
    ) -> None:
        self.images = ImageVerbs(host, inventory, wake)
        merging = Merging(host, inventory)
        self.disks = DiskVerbs(
            host.layout,
            inventory,
            use,
            Transfers(host, inventory, use),
            Forks(host, inventory, use, merging),
            merging,
        )
        self.runs = Runs(inventory, use, wake)
        self._host = host
        self._layout = host.layout
        self._inventory = inventory
        self._store = store
        self._rescan = rescan
        self._wake = wake

    def names(self) -> Sequence[str]:
        return sorted(self._inventory.entries)

    def report(self, name: str) -> Report:
        entry = self._entry(name)
        # From memory: a full disk keeps the file from being written, not the truth from being told.
        return entry.report or Report(name=name, generation=entry.record.generation)

    def events(self, name: str) -> Sequence[Event]:
        self._entry(name)
        return self._store.read_events(name)

    def version(self) -> Mapping[str, str]:
        return {
            "box": installed_version(),
            "instance": self._layout.instance,
            "pid": str(os.getpid()),
        }

    async def exec(self, name: str, request: ExecRequest) -> Process:
        entry, live = self._up(name)
        return await commands.start(live, entry.record.spec, request)

    async def run(self, name: str, request: ExecRequest) -> RunCommand:
        return await self.runs.start(name, request)

    async def apply(self, name: str, data: bytes, if_match: str | None) -> Applied:
        parsed = parse_boxfile(data, file=f"{name}.box.yaml", expected_name=name)
        if parsed.box is None:
            raise InvalidBoxfile.of(parsed.problems)
        # In a thread: it waits up to 10 s for another writer, and nothing else may wait with it.
        done = await asyncio.to_thread(
            apply.apply_text, self._layout.boxes, name, data, if_match=if_match
        )
        self._rescan()
        return done

    async def delete(self, name: str, *, erase_data: bool) -> None:
        entry = self._entry(name)
        if erase_data:
            self._inventory.may_erase(name)
        # A scan may see the file gone before we are back, so what was asked is noted before.
        self._inventory.vanishing.release(name)
        entry.erase_by_hand = erase_data
        try:
            # The file goes before anything durable: killed in between, the data is kept.
            await asyncio.to_thread(apply.delete_file, self._layout.boxes, name)
        except BaseException:
            self._inventory.vanishing.take_back(name)
            entry.erase_by_hand = False
            raise
        if erase_data:
            self._inventory.mark_erase(name)
        self._rescan()

    async def verify(self, name: str) -> Sequence[Reading]:
        """Every proof that can be made now, also of a VM whose guest is silent."""
        entry, live = self._running(name)
        spec, record = entry.record.spec, live.record
        assert spec is not None
        box = as_launched(spec, record.settings)
        uid = self._host.claimed_uid(name, str(box.isolation))
        size = disk_bytes(self._layout, name)
        want = wanted_confinement(self._host, box, record, uid, size)
        outside = await asyncio.to_thread(proofs.from_outside, record, want, cpus=box.cpus)
        told = proofs.from_the_guest(record, await _answering(live))
        try:
            directories, _ = await asyncio.to_thread(
                mountrules.look, self._host, self._inventory, name, box
            )
            confinement = await confinement_of(
                self._host, name, box, record, uid, size, directories
            )
        except ProcessLookupError as error:
            raise NotUp(f"the VMM of {name} has just ended", fix=f"box events {name}") from error
        network = await read_network(self._host, name, box, record.pid)
        if isinstance(network, Unknown):
            raise HostError(f"the network of {name} cannot be read: {network.why}")
        found = (
            *(
                Reading("kernel", p.item, p.want, p.got, p.ok, p.source, "live", "replace")
                for p in outside
            ),
            *(
                Reading("guest", p.item, p.want, p.got, p.ok, p.source, "live", "replace")
                for p in told
            ),
            *confinement,
            *network.readings,
        )
        if not all(reading.ok for reading in found):
            self._wake(name)  # what was just seen need not wait for the next timed pass
        return found

    async def prune(self, *, confirm: bool) -> Mapping[str, str]:
        held = self._inventory.held()
        if confirm and held:
            self._inventory.vanishing.confirm()
            self._rescan()
        return held

    def poke(self, name: str) -> None:
        self._wake(name)

    def _entry(self, name: str) -> Entry:
        return known(self._inventory.entries, name)

    def _running(self, name: str) -> tuple[Entry, Live]:
        """Its VMM is held, whether or not its guest answers."""
        entry = self._entry(name)
        if entry.live is None or entry.record.spec is None:
            raise _not_up(name, entry)
        return entry, entry.live

    def _up(self, name: str) -> tuple[Entry, Live]:
        entry, live = self._running(name)
        if entry.run is not None:
            raise NotUp(
                f"{name} is stopped, and the VM that is up is for one command of box run",
                fix=f"state: running in its Boxfile, or box run {name} when that has ended",
            )
        if live.client is None:
            raise _not_up(name, entry)
        return entry, live


def _not_up(name: str, entry: Entry) -> NotUp:
    """Whoever waits for one that is to be stopped waits in vain."""
    if entry.box is not None and entry.box.state is State.stopped:
        return NotUp(
            f"{name} is stopped, as its Boxfile says",
            fix=f"write state: running into it, or box run {name} for one command",
        )
    return NotUp(f"{name} is not up", fix=f"box wait {name} --for Ready, or box describe {name}")
