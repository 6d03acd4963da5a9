"""The networks of an ordinary user's sandboxes, with the same face as `networks.Networks`.

They live and end with their VMM: two namespaces that belong to a user namespace of the user's, and
two helpers beside the VMM that keep and carry them (`reconcilers/wire.py`). So nothing is ever left
on the host, and nothing of it can be there before a VMM starts. Everything here blocks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address, ip_network

from reconcilers import launchrecord, procfs
from reconcilers.confinement.wirepolicy import KEEPER
from reconcilers.facts import Network
from reconcilers.launchrecord import HelperRecord, LaunchRecord
from reconcilers.layout import Layout
from reconcilers.network import (
    described,
    inner,
    innerread,
    lacking,
    readlinks,
    rules,
    state,
    surroundings,
)
from reconcilers.network.addresses import first_slot
from reconcilers.network.innerclient import Inside, Made
from reconcilers.network.innerviews import Gone, Process
from reconcilers.network.routing import Routing
from reconcilers.network.surroundings import Surroundings
from reconcilers.network.wanted import MIDDLE_TABLE, Wanted
from specs.boxfile import Boxfile
from specs.config import Config
from specs.egress import egress_of
from specs.errors import HostError
from specs.names import INTERFACE_PREFIX, HostNames
from specs.reading import Mend, Reading

RULES_ITEM, TAP_ITEM, SPACES_ITEM = "rules", "tap", "namespaces"
_LOCAL_TABLE = 255
_RTN_LOCAL, _RTN_BROADCAST, _RTN_ANYCAST = 2, 3, 4  # include/uapi/linux/rtnetlink.h


class UserNetworks:
    """One for a controller; its methods may run in several threads at once, one per sandbox."""

    def __init__(self, config: Config, layout: Layout) -> None:
        self._resolver = ip_address(config.resolver) if config.resolver else None
        self._layout = layout
        self._inside = Inside()
        # (keeper, network) -> generation at which its rules were found right
        self._right: dict[tuple[Process, Wanted], int] = {}

    def present(self, names: HostNames) -> bool:
        """What there is of it are processes in the sandbox's group, and ends with them: asked of
        one that is to have none, so nothing of it is held any more.
        """
        self._inside.let_go(names)
        return False

    def wanted(self, names: HostNames, box: Boxfile) -> Wanted:
        """What the network must be now. Raises HostError when this host cannot have it."""
        with readlinks.worded("read"):
            around = look(self._resolver)
        problem, fix = lacking.problem(around, egress_of(box.egress), ordinary=True)
        if problem:
            raise HostError(problem, fix=fix)
        return _wanted(names, box, around)

    def build(self, wanted: Wanted, keeper: Process) -> Made:
        """Both namespaces' links and the rules, rules first. Raises HostError."""
        try:
            return self._inside.build(wanted, keeper)
        except Gone as error:
            raise HostError(f"the keeper of its namespaces ended: {error}") from error

    def observe(self, names: HostNames, box: Boxfile, vmm: int) -> Network:
        """Everything about the network of a bridged sandbox; `vmm` is its PID, 0 when it has none.

        Raises BoxError or OSError when it cannot be read.
        """
        with readlinks.worded("read"):
            around = look(self._resolver)
        wanted = _wanted(names, box, around)
        problem, fix = lacking.problem(around, egress_of(box.egress), ordinary=True)
        if not vmm:
            self._inside.let_go(names)
            # It is made with its VMM; a host that cannot give it is told before one is stopped.
            missing = (_reading(SPACES_ITEM, problem, "in place"),) if problem else ()
            return Network(readings=missing)
        record = self._record(names)
        keeper = _keeper(record) if record is not None else None
        if record is None or record.pid != vmm or keeper is None:
            return Network(readings=(_reading(SPACES_ITEM, "nobody keeps them", "replace"),))
        running = (keeper.pid, keeper.start_time)
        key = (running, wanted)
        try:
            found = self._inside.observe(
                wanted, running, (record.pid, record.start_time), self._right.get(key, 0)
            )
        except Gone:
            if procfs.alive(record.pid, record.start_time) is None:
                raise FileNotFoundError(f"process {record.pid} ended") from None
            return Network(readings=(_reading(SPACES_ITEM, "their keeper ended", "replace"),))
        if not found.wrong:
            if len(self._right) > 1024:
                self._right.clear()
            self._right[key] = found.generation
        return Network(
            present=False,
            readings=(_place(vmm, keeper.pid), *_readings(wanted, found)),
            for_guest=wanted.for_guest().decode(),
            shown=_shown(wanted, found, f"{problem}: {fix}" if problem else ""),
        )

    def for_guest(self, names: HostNames, box: Boxfile) -> str:
        """What the guest has to be told now."""
        with readlinks.worded("read"):
            return _wanted(names, box, look(self._resolver)).for_guest().decode()

    def raise_up(self, names: HostNames, box: Boxfile) -> None:
        """Put back what differs beside a running VMM. Raises HostError, also for a host that could
        not make one.
        """
        wanted = self.wanted(names, box)
        record = self._record(names)
        keeper = _keeper(record) if record is not None else None
        if record is None or keeper is None:
            return  # it is made with its VMM
        try:
            process = (record.pid, record.start_time)
            self._inside.mend(wanted, (keeper.pid, keeper.start_time), process)
        except Gone as error:
            raise HostError(f"its network is gone: {error}") from error

    def open_tap(self, names: HostNames) -> tuple[int, int]:
        raise HostError("an ordinary user's tap is made with its VMM")

    def remove(self, names: HostNames) -> None:
        """It went with the VMM's group, but for what is held of it here."""
        self._inside.let_go(names)

    def remove_strays(self, instance: str, known: Iterable[str]) -> tuple[list[str], list[str]]:
        """There are none: what nobody knows is killed as a process."""
        return [], []

    def _record(self, names: HostNames) -> LaunchRecord | None:
        record = launchrecord.read(self._layout.launch_record(names.sandbox))
        if record is None or procfs.alive(record.pid, record.start_time) is None:
            return None
        return record


def look(resolver: object = None) -> Surroundings:
    """As `surroundings.look`, for pasta: it forwards nothing, and every address that the host takes
    for its own must be in the rules, for there is no second wall behind them.
    """
    around = surroundings.look(resolver)  # type: ignore[arg-type]
    own = {ip_network(each) for each in around.addresses}
    with Routing() as kernel:
        for each in kernel.routes(_LOCAL_TABLE):
            if each.kind in (_RTN_LOCAL, _RTN_BROADCAST, _RTN_ANYCAST):
                own.add(ip_network(each.to))
    named = frozenset(each for each in own if not surroundings.never_named(each))
    return replace(around, addresses=named, forwards4=True, forwards6=True)


def link_device() -> str:
    """A device that is up and has an IPv6 link-local address, else `lo`: what pasta is shown."""
    with Routing() as kernel:
        up = {each.index: each.name for each in kernel.links()
              if each.up and not each.name.startswith(INTERFACE_PREFIX)}  # fmt: skip
        for each in kernel.addresses():
            six = each.family == socket.AF_INET6
            if six and each.device in up and each.scope == readlinks.RT_SCOPE_LINK_LOCAL6:
                return up[each.device]
    return "lo"


def _keeper(record: LaunchRecord) -> HelperRecord | None:
    return next((each for each in record.helpers if each.role == KEEPER), None)


def _wanted(names: HostNames, box: Boxfile, around: Surroundings) -> Wanted:
    # Both namespaces are its own: all addresses are free.
    return described.wanted_of(names, box, around, first_slot(names))


def _place(vmm: int, keeper: int) -> Reading:
    """Who owns the VMM's network namespace owns the one with the rules."""
    path = f"/proc/{vmm}/ns/user"
    theirs, ours = os.readlink(path), os.readlink(f"/proc/{keeper}/ns/user")
    wrong = "" if theirs == ours else f"it is in {theirs}, its keeper in {ours}"
    return _reading(SPACES_ITEM, wrong, "replace", path)


def _readings(wanted: Wanted, found: innerread.Found) -> Iterable[Reading]:
    right = inner.wanted_state(wanted)
    for item in state.ITEMS:
        wrong = state.difference(right.lines[item], found.lines.get(item, ()))
        # pasta holds the other end of the uplink; only a new start brings another
        gone = item == state.LINKS and not found.uplink
        yield _reading(item, wrong, "replace" if gone else "in place")
    wrong = state.difference(right.tap, found.tap)
    yield _reading(TAP_ITEM, wrong, "in place" if found.tap else "replace")
    yield _reading(RULES_ITEM, found.wrong, "in place", f"nft list table inet {MIDDLE_TABLE}")


def _reading(item: str, wrong: str, mend: Mend, source: str = "") -> Reading:
    where = source or "netlink, /proc/sys/net, in its user namespace"
    return described.reading(item, wrong, source=where, mend=mend)


def _shown(wanted: Wanted, found: innerread.Found, problem: str) -> dict[str, str]:
    dropped = {name: n for name, n in found.counts.items() if name != rules.PASSED}
    own_way = {"carried by": "pasta: TCP, UDP and ping, as connections of this user"}
    return described.shown(wanted, dropped, problem, own_way)
