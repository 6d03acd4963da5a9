"""The networks of all sandboxes of one home: looked at, made, mended, removed.

What is wanted is worked out anew each time, from the Boxfile and from the host as it is now. What
is held in memory only saves work: which ruleset was found right at which generation. Everything
here blocks and belongs into a thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import TypeVar

from reconcilers.facts import Network
from reconcilers.network import (
    described,
    lacking,
    links,
    netfilter,
    readlinks,
    rules,
    slots,
    spaces,
    state,
    surroundings,
    tables,
    taps,
)
from reconcilers.network.described import reading
from reconcilers.network.nftjson import Table
from reconcilers.network.wanted import MIDDLE_TABLE, Wanted, host_table
from specs.boxfile import Boxfile
from specs.config import Config
from specs.egress import egress_of
from specs.errors import BoxError, HostError
from specs.names import HostNames, is_interface_of
from specs.reading import Mend, Reading

RULES_ITEM, HOST_RULES_ITEM, PLACE_ITEM, TAP_ITEM = (
    "rules",
    "host rules",
    "namespace of the VMM",
    "tap",
)
T = TypeVar("T")


@dataclass(frozen=True)
class _Right:
    """A table as it must be, and the digest of its text."""

    table: Table
    digest: str

    @classmethod
    def of(cls, table: Table) -> _Right:
        return cls(table, hashlib.sha256(table.to_json()).hexdigest())


# Written down once and not in every pass: what is wanted changes seldom.
@lru_cache(maxsize=1024)
def _middle_table(wanted: Wanted) -> _Right:
    return _Right.of(rules.middle_table(wanted))


@lru_cache(maxsize=1024)
def _host_table(wanted: Wanted) -> _Right:
    return _Right.of(rules.host_table(wanted))


class Networks:
    """One for a controller; its methods may run in several threads at once, one per sandbox."""

    def __init__(self, config: Config) -> None:
        self._resolver = ip_address(config.resolver) if config.resolver else None
        self._comparison = tables.Comparison()
        # (namespace, table) -> (generation, digest of the table) when it was found right
        self._right: dict[tuple[str, str], tuple[int, str]] = {}

    # -- looking

    def present(self, names: HostNames) -> bool:
        """Whether the host shows anything of a network of this sandbox."""
        return bool(
            spaces.path_of(names.interface("v")).exists()
            or spaces.path_of(names.interface("m")).exists()
            or links.number_of(names.interface("h"))
        )

    def observe(self, names: HostNames, box: Boxfile, vmm: int) -> Network:
        """Everything about the network of a bridged sandbox; `vmm` is its PID, 0 when it has none.

        Raises BoxError or OSError when it cannot be read.
        """
        with readlinks.worded("read"):
            around = surroundings.look(self._resolver)
            present, slot = self.present(names), slots.live_slot(names)
            if slot is None:
                lines = state.ITEMS if present else ("network",)
                return Network(present, tuple(reading(each, "nothing") for each in lines))
            wanted = described.wanted_of(names, box, around, slot)
            found, right = readlinks.read_state(wanted), state.wanted_state(wanted)
        readings = [
            reading(item, state.difference(right.lines[item], found.lines[item]))
            for item in state.ITEMS
        ]
        if vmm:
            readings += [self._place(wanted, vmm), _tap(right.tap, found.tap)]
        dropped: dict[str, int] = {}
        readings += [
            self._rules(wanted.middle_space, _middle_table(wanted), dropped),
            self._rules("", _host_table(wanted), dropped),
        ]
        problem, fix = lacking.problem(around, wanted.egress, ordinary=False)
        return Network(
            present,
            tuple(readings),
            wanted.for_guest().decode(),
            _shown(wanted, dropped, f"{problem}: {fix}" if problem else ""),
        )

    def for_guest(self, names: HostNames, box: Boxfile) -> str:
        """What the guest has to be told now. Raises HostError when there is no network."""
        with readlinks.worded("read"):
            slot = slots.live_slot(names)
            if slot is None:
                raise HostError("its network is gone")
            around = surroundings.look(self._resolver)
            return described.wanted_of(names, box, around, slot).for_guest().decode()

    def _rules(self, space: str, right: _Right, dropped: dict[str, int]) -> Reading:
        """Compare one table; the host's own namespace when `space` is empty."""
        item = RULES_ITEM if space else HOST_RULES_ITEM
        source = f"ip netns exec {space} " if space else ""
        source += f"nft list table inet {right.table.name}"
        try:
            wrong = _in(space, lambda: self._difference(space, right, dropped))
        except (BoxError, OSError) as error:
            if space and not spaces.exists(space):
                return reading(item, "no namespace", source=source)
            raise HostError(f"the rules cannot be read: {error}") from error
        return reading(item, wrong, source=source)

    def _difference(self, space: str, right: _Right, dropped: dict[str, int]) -> str:
        where, table = f"{space} {spaces.inode(space)}" if space else "", right.table
        now = (netfilter.generation(), right.digest)
        if self._right.get((where, table.name)) != now:
            found = tables.listing(table.name)
            if found is None:
                return "there is no table"
            if not self._comparison.same(table, found):
                return "the table holds other rules"
            self._right[where, table.name] = now
        for name, packets in netfilter.counts(table.name).items():
            if name != rules.PASSED:
                dropped[name] = dropped.get(name, 0) + packets
        return ""

    def _place(self, wanted: Wanted, vmm: int) -> Reading:
        path = f"/proc/{vmm}/ns/net"
        theirs, ours = os.stat(path).st_ino, spaces.inode(wanted.vmm_space)
        got = "" if theirs == ours else f"net:[{theirs}]"
        want = f"net:[{ours}]"
        return reading(PLACE_ITEM, got, want=want, source=path, mend="replace")

    # -- acting

    def raise_up(self, names: HostNames, box: Boxfile) -> None:
        """Make everything as wanted: rules first, links last. Raises HostError, CommandError."""
        with readlinks.worded("set up"):
            around = surroundings.look(self._resolver)
            problem, fix = lacking.problem(around, egress_of(box.egress), ordinary=False)
            if problem:
                raise HostError(problem, fix=fix)
            with slots.locked():
                slot = slots.live_slot(names)
                if slot is None:
                    slot = slots.free_slot(names)
                wanted = described.wanted_of(names, box, around, slot)
                spaces.create(wanted.vmm_space)
                spaces.create(wanted.middle_space)
                self._load_rules(wanted)
                links.raise_links(wanted)  # the lock ends when the slot can be seen on the link

    def _load_rules(self, wanted: Wanted) -> None:
        middle, ours = _middle_table(wanted), _host_table(wanted)
        if _in(wanted.middle_space, lambda: self._load(wanted.middle_space, middle)):
            # What was let through under other rules is judged again.
            spaces.inside(wanted.middle_space, netfilter.forget_connections)
        self._load("", ours)

    def _load(self, space: str, right: _Right) -> bool:
        """Load a table unless it is there already; whether it was loaded."""
        if not self._difference(space, right, {}):
            return False
        tables.load(right.table)
        if wrong := self._difference(space, right, {}):
            raise HostError(f"the rules were loaded, and then {wrong}")
        return True

    def open_tap(self, names: HostNames) -> tuple[int, int]:
        """A new tap on the sandbox's bridge, and the namespace it is in: descriptors to close."""
        space = spaces.open_space(names.interface("v"))
        try:
            return spaces.inside(names.interface("v"), lambda: taps.open_tap(names)), space
        except BaseException:
            os.close(space)
            raise

    def remove(self, names: HostNames) -> None:
        """Everything of a sandbox's network, or what is left of it. Raises HostError.

        The namespaces go last: as long as one is there, what is left is found again.
        """
        links.remove_host_link(names.interface("h"))
        if tables.installed():
            tables.delete(host_table(names))
        links.remove_rules(names.interface("h"))
        for kind in ("m", "v"):
            spaces.remove(names.interface(kind))
        for where, table in list(self._right):  # a copy: other threads may add theirs
            if table == host_table(names) or where.startswith(f"{names.interface('m')} "):
                self._right.pop((where, table), None)

    def remove_strays(self, instance: str, known: Iterable[str]) -> tuple[list[str], list[str]]:
        """Remove what this instance has on the host for sandboxes that nobody knows (blocking).

        `known` are the sandboxes that exist. Nothing of another instance is touched, and what
        cannot be removed keeps nothing else. Returns the names of what was removed, and a line for
        each that is still there. Raises BoxError, OSError when the host cannot be looked at.
        """
        strays = _strays(instance, known)
        removed, kept = [], []
        for name, removal in strays.items():
            try:
                removal()
            except (BoxError, OSError) as error:
                kept.append(f"{name}: {error}")
            else:
                removed.append(name)
        return removed, kept


def _strays(instance: str, known: Iterable[str]) -> dict[str, Callable[[], None]]:
    """What nobody knows, and how it is removed; links before namespaces, as in `remove`."""
    all_names = [HostNames(instance, name) for name in known]
    expected = {each.interface(kind) for each in all_names for kind in ("v", "m", "h")}
    kept_tables = {host_table(each) for each in all_names}

    def stray(name: str) -> bool:
        return is_interface_of(name, instance) and name not in expected

    found_links = list(filter(stray, links.names()))
    found_spaces = list(filter(stray, spaces.names()))
    found_rules = list(filter(stray, links.rule_devices()))
    # A listing of tables costs more, and no table is there without a trace of the others.
    if not (found_links or found_spaces or found_rules):
        return {}
    found: dict[str, Callable[[], None]] = {
        name: partial(links.remove_host_link, name) for name in found_links
    }
    ours = host_table(HostNames(instance, "x")).removesuffix("x")
    for name in tables.names() if tables.installed() else ():
        if name.startswith(ours) and name not in kept_tables:
            found[f"table {name}"] = partial(tables.delete, name)
    for name in found_rules:
        found[f"rules of {name}"] = partial(links.remove_rules, name)
    return found | {name: partial(spaces.remove, name) for name in found_spaces}


def _in(space: str, work: Callable[[], T]) -> T:
    """In this namespace, or here when it is empty."""
    return spaces.inside(space, work) if space else work()


def _tap(right: frozenset[str], found: frozenset[str]) -> Reading:
    wrong = state.difference(right, found)
    # Only a new VMM opens a tap again; one that is merely down or off the bridge is put back.
    mend: Mend = "in place" if found else "replace"
    return reading(TAP_ITEM, wrong, mend=mend)


def _shown(wanted: Wanted, dropped: dict[str, int], problem: str) -> dict[str, str]:
    own_way = {
        "namespaces": f"{wanted.vmm_space} (VMM), {wanted.middle_space} (rules)",
        "tables": f"inet {MIDDLE_TABLE} in {wanted.middle_space}, inet {wanted.host_table}",
    }
    return described.shown(wanted, dropped, problem, own_way)
