"""Reads the lines of `state.py` off the kernel, by netlink and /proc/sys. Changes nothing.

Root enters each namespace for it; an ordinary user has sockets and files of them (`innerviews`).

Only what lies on devices and in tables of ours is looked at: the host's own links, addresses and
routes are nobody's business here.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from reconcilers.confinement.netdevices import FALLBACK
from reconcilers.network import spaces, state
from reconcilers.network.routing import Routing
from reconcilers.network.rtmessages import Address, Link, Route, Rule
from reconcilers.network.state import State
from reconcilers.network.wanted import Wanted
from specs.errors import HostError

# include/uapi/linux/rtnetlink.h, fib_rules.h, if.h
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK_LOCAL6 = 0, 253
RTN_UNICAST = 1
FR_ACT_TO_TBL, FR_ACT_GOTO, FR_ACT_NOP, FR_ACT_BLACKHOLE = 1, 2, 3, 6
MAIN_TABLE = 254
KERNEL_RULES = (0, 32766, 32767)  # priorities of the three that are always there
FAMILIES: Mapping[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 6}


class Place(NamedTuple):
    """A network namespace to read: its routing socket, and what reads a file of its /proc/sys/net,
    None where there is none.
    """

    kernel: Routing
    setting: Callable[[str], str | None]


def read_state(wanted: Wanted) -> State:
    """Everything there is of this sandbox's network (blocking). A missing namespace shows nothing.

    Raises OSError when the kernel does not answer.
    """
    lines: dict[str, set[str]] = {item: set() for item in state.ITEMS}
    tap: set[str] = set()
    known: dict[int, str] = {}
    if spaces.exists(wanted.vmm_space):
        spaces.inside(wanted.vmm_space, lambda: _here(_vmm, wanted, lines, tap, known))
    if spaces.exists(wanted.middle_space):
        spaces.inside(wanted.middle_space, lambda: _here(_middle, wanted, lines, known))
    _here(_host, wanted, lines, known)
    return State({item: frozenset(found) for item, found in lines.items()}, frozenset(tap))


def read_inner(wanted: Wanted, vmm: Place, middle: Place) -> tuple[State, bool]:
    """As `read_state` without the host's side, which an ordinary user's network does not have; and
    whether the uplink is there. Raises OSError.
    """
    lines: dict[str, set[str]] = {item: set() for item in state.ITEMS}
    tap: set[str] = set()
    known: dict[int, str] = {}
    _vmm(vmm, wanted, lines, tap, known)
    _middle(middle, wanted, lines, known)
    found = State({item: frozenset(lines) for item, lines in lines.items()}, frozenset(tap))
    return found, wanted.uplink in known.values()


def _here(read: Callable[..., None], *given: object) -> None:
    """In the calling thread's namespace."""
    with Routing() as kernel:
        read(Place(kernel, spaces.read_sysctl), *given)


def _vmm(
    place: Place,
    wanted: Wanted,
    lines: dict[str, set[str]],
    tap: set[str],
    known: dict[int, str],
) -> None:
    links = place.kernel.links()
    names = {each.index: each.name for each in links}
    for each in links:
        if each.name == "lo" or idle(each):
            continue
        line = state.link("vmm", each.name, each.kind or "?", each.mtu, up=each.up,
                          master=names.get(each.master, ""), learns=each.learns)  # fmt: skip
        (tap if each.name == wanted.tap else lines[state.LINKS]).add(line)
        if each.name == wanted.inner:
            known[each.index] = wanted.inner
    _settings("vmm", place, state.VMM_SETTINGS, links, lines)


def _middle(
    place: Place, wanted: Wanted, lines: dict[str, set[str]], known: dict[int, str]
) -> None:
    inner = dict(known)
    known.clear()
    kernel, names = place.kernel, dict[int, str]()
    links = kernel.links()
    for link in links:
        names[link.index] = link.name
        if link.name == "lo" or idle(link):
            continue
        peer = inner.get(link.peer, "") if link.name == wanted.guest_side else ""
        lines[state.LINKS].add(_link("middle", link, peer))
        if link.name == wanted.uplink:
            known[link.index] = link.name
    for address in kernel.addresses():
        if names.get(address.device) != "lo" and address.scope == RT_SCOPE_UNIVERSE:
            lines[state.ADDRESSES].add(_address("middle", address, names))
    # the main table too: a route there would let unmarked packets out
    for route in kernel.routes(state.MARKED_TABLE, MAIN_TABLE):
        if not link_local(route):
            lines[state.ROUTES].add(_route("middle", route, names))
    for rule in kernel.rules():
        if rule.priority not in KERNEL_RULES:
            lines[state.RULES].add(rule_line("middle", rule))
    _settings("middle", place, state.middle_settings(wanted), links, lines)


def _host(place: Place, wanted: Wanted, lines: dict[str, set[str]], known: dict[int, str]) -> None:
    kernel = place.kernel
    link = kernel.link(wanted.host_side)
    if link is not None:
        names = {link.index: link.name}
        lines[state.LINKS].add(_link("host", link, known.get(link.peer, "")))
        for address in kernel.addresses():
            if address.device == link.index and address.scope == RT_SCOPE_UNIVERSE:
                lines[state.ADDRESSES].add(_address("host", address, names))
        for route in kernel.routes(MAIN_TABLE):
            if route.device == link.index and not link_local(route):
                lines[state.ROUTES].add(_route("host", route, names))
    for rule in kernel.rules():
        if rule.device == wanted.host_side and (wanted.host_ipv6 or FAMILIES[rule.family] == 4):
            lines[state.RULES].add(rule_line("host", rule))
    links = () if link is None else (link,)
    _settings("host", place, state.host_settings(wanted), links, lines)


@contextlib.contextmanager
def worded(what: str) -> Iterator[None]:
    """The kernel's refusals as HostError; `what` is the verb."""
    try:
        yield
    except OSError as error:
        raise HostError(
            f"the network cannot be {what}: {error.strerror or error}",
            fix="`box doctor` lists what this host lacks",
        ) from error


def _link(space: str, link: Link, peer: str) -> str:
    return state.link(space, link.name, link.kind or "?", link.mtu, peer=peer, up=link.up)


def _address(space: str, found: Address, names: Mapping[int, str]) -> str:
    return state.address(space, names.get(found.device, "?"), f"{found.text}/{found.prefix}")


def idle(link: Link) -> bool:
    """A tunnel module's own device, which nobody can delete; one that is down leads nowhere."""
    return not link.up and is_fallback(link)


def is_fallback(link: Link) -> bool:
    return FALLBACK.get(link.name) == link.kind


def link_local(found: Route) -> bool:
    """The kernel's own routes for link-local addresses and multicast."""
    return found.family == socket.AF_INET6 and found.to.startswith(("fe80:", "ff00:"))


def _route(space: str, found: Route, names: Mapping[int, str]) -> str:
    to = found.to
    if found.kind != RTN_UNICAST:
        to += f" (type {found.kind})"
    if space == "middle" and found.table != state.MARKED_TABLE:
        to += f" (table {found.table})"
    return state.route(space, to, names.get(found.device, "?"), found.gateway)


def rule_line(space: str, found: Rule) -> str:
    action = {
        FR_ACT_TO_TBL: f"lookup {found.table}",
        FR_ACT_GOTO: f"goto {found.goto}",
        FR_ACT_NOP: "nop",
        FR_ACT_BLACKHOLE: "blackhole",
    }.get(found.action, f"action {found.action}")
    version = FAMILIES[found.family]
    return state.rule(space, version, found.priority, found.device, found.mark, action)


def _settings(
    space: str,
    place: Place,
    wanted: Mapping[str, str],
    links: Iterable[Link],
    lines: dict[str, set[str]],
) -> None:
    """A link's own come with the link, and cost no file."""
    by_name = {each.name: each for each in links}
    for name in wanted:
        family, device, key = _of_link(name)
        if not device:
            value = place.setting(name)
        else:
            value = by_name[device].setting(family, key) if device in by_name else None
        if value is not None:
            lines[state.SETTINGS].add(state.setting(space, name, value))


def in_files(settings: Iterable[str]) -> list[str]:
    """Those that are no link's own: they are read from /proc/sys/net."""
    return [name for name in settings if not _of_link(name)[1]]


@lru_cache(maxsize=4096)
def _of_link(name: str) -> tuple[str, str, str]:
    """FAMILY/conf/DEVICE/KEY in its parts; without a device for what is no link's own."""
    family, _, rest = name.partition("/conf/")
    device, _, key = rest.partition("/")
    return (family, device, key) if device not in ("", "all", "default") else ("", "", "")
