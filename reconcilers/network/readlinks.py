"""Reads the lines of `state.py` off the kernel, by netlink and /proc/sys. Changes nothing.

Only what lies on devices and in tables of ours is looked at: the host's own links, addresses and
routes are nobody's business here.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from reconcilers.confinement.netdevices import FALLBACK
from reconcilers.network import spaces, state
from reconcilers.network.state import State
from reconcilers.network.wanted import Wanted
from specs.errors import HostError

# include/uapi/linux/rtnetlink.h, fib_rules.h, if.h
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK_LOCAL6 = 0, 253
RTN_UNICAST = 1
FR_ACT_TO_TBL, FR_ACT_GOTO, FR_ACT_NOP, FR_ACT_BLACKHOLE = 1, 2, 3, 6
MAIN_TABLE = 254
IFF_UP = 1
FAMILIES = {socket.AF_INET: 4, socket.AF_INET6: 6}


def read_state(wanted: Wanted) -> State:
    """Everything there is of this sandbox's network (blocking). A missing namespace shows nothing.

    Raises OSError or pyroute2's NetlinkError when the kernel does not answer.
    """
    lines: dict[str, set[str]] = {item: set() for item in state.ITEMS}
    tap: set[str] = set()
    known: dict[int, str] = {}
    if spaces.exists(wanted.vmm_space):
        spaces.inside(wanted.vmm_space, lambda: _vmm(wanted, lines, tap, known))
    if spaces.exists(wanted.middle_space):
        spaces.inside(wanted.middle_space, lambda: _middle(wanted, lines, known))
    _host(wanted, lines, known)
    return State({item: frozenset(found) for item, found in lines.items()}, frozenset(tap))


def _vmm(wanted: Wanted, lines: dict[str, set[str]], tap: set[str], known: dict[int, str]) -> None:
    with netlink() as ip:
        links = {each["index"]: each for each in ip.get_links()}
    names = {index: each.get("ifname") for index, each in links.items()}
    for index, each in links.items():
        if names[index] == "lo" or idle(names[index], kind_of(each), is_up(each)):
            continue
        master = names.get(each.get("master") or 0, "")
        line = state.link("vmm", names[index], kind_of(each), each.get("mtu"), master=master,
                          up=is_up(each))  # fmt: skip
        (tap if names[index] == wanted.tap else lines[state.LINKS]).add(line)
        if names[index] == wanted.inner:
            known[index] = wanted.inner
    _settings("vmm", state.VMM_SETTINGS, lines)


def _middle(wanted: Wanted, lines: dict[str, set[str]], known: dict[int, str]) -> None:
    inner = dict(known)
    known.clear()
    with netlink() as ip:
        names: dict[int, str] = {}
        for each in ip.get_links():
            name = names[each["index"]] = each.get("ifname")
            if name == "lo" or idle(name, kind_of(each), is_up(each)):
                continue
            peer = inner.get(each.get("link") or 0, "") if name == wanted.guest_side else ""
            line = state.link("middle", name, kind_of(each), each.get("mtu"), peer=peer,
                              up=is_up(each))  # fmt: skip
            lines[state.LINKS].add(line)
            if name == wanted.uplink:
                known[each["index"]] = name
        for each in ip.get_addr():
            if names.get(each["index"]) != "lo" and each["scope"] == RT_SCOPE_UNIVERSE:
                lines[state.ADDRESSES].add(_address("middle", each, names))
        for each in ip.get_routes():
            # the main table too: a route there would let unmarked packets out
            if each.get("table") in (state.MARKED_TABLE, MAIN_TABLE) and not link_local(each):
                lines[state.ROUTES].add(_route("middle", each, names))
        for family in FAMILIES:
            for each in ip.get_rules(family=family):
                if (each.get("FRA_PRIORITY") or 0) not in (0, 32766, 32767):
                    lines[state.RULES].add(rule_line("middle", each))
    _settings("middle", state.middle_settings(wanted), lines)


def _host(wanted: Wanted, lines: dict[str, set[str]], known: dict[int, str]) -> None:
    with netlink() as ip:
        try:
            index = socket.if_nametoindex(wanted.host_side)
        except OSError:
            index = 0
        names = {index: wanted.host_side}
        if index:
            [each] = ip.link("get", index=index)
            peer = known.get(each.get("link") or 0, "")
            line = state.link("host", wanted.host_side, kind_of(each), each.get("mtu"), peer=peer,
                              up=is_up(each))  # fmt: skip
            lines[state.LINKS].add(line)
            for each in ip.get_addr(index=index):
                if each["scope"] == RT_SCOPE_UNIVERSE:
                    lines[state.ADDRESSES].add(_address("host", each, names))
            for each in ip.get_routes(table=MAIN_TABLE, oif=index):
                if not link_local(each):
                    lines[state.ROUTES].add(_route("host", each, names))
        for family in FAMILIES if wanted.host_ipv6 else (socket.AF_INET,):
            for each in ip.get_rules(family=family):
                if each.get("FRA_IIFNAME") == wanted.host_side:
                    lines[state.RULES].add(rule_line("host", each))
    _settings("host", state.host_settings(wanted), lines)


def netlink() -> Any:
    """A routing socket of the calling thread's namespace."""
    from pyroute2 import IPRoute  # 0.3 s to import: only who has a network pays

    return IPRoute()


@contextlib.contextmanager
def worded(what: str) -> Iterator[None]:
    """The kernel's refusals as HostError; `what` is the verb."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        raise HostError(
            f"the network cannot be {what}: {os.strerror(error.code)}",
            fix="`box doctor` lists what this host lacks",
        ) from error
    except OSError as error:
        raise HostError(f"the network cannot be {what}: {error.strerror or error}") from error


def kind_of(link: Any) -> str:
    return str(link.get(("linkinfo", "kind")) or "?")


def is_up(link: Any) -> bool:
    return bool(link["flags"] & IFF_UP)


def _address(space: str, found: Any, names: Mapping[int, str]) -> str:
    text = f"{found.get('local') or found.get('address')}/{found['prefixlen']}"
    return state.address(space, names.get(found["index"], "?"), text)


def idle(name: str, kind: str, up: bool) -> bool:
    """A tunnel module's own device, which nobody can delete, and which leads nowhere."""
    return not up and FALLBACK.get(name) == kind


def link_local(found: Any) -> bool:
    """The kernel's own routes for link-local addresses and multicast."""
    to = str(found.get("dst") or "")
    return found["family"] == socket.AF_INET6 and to.startswith(("fe80:", "ff00:"))


def _route(space: str, found: Any, names: Mapping[int, str]) -> str:
    nowhere = "::" if found["family"] == socket.AF_INET6 else "0.0.0.0"
    to = f"{found.get('dst') or nowhere}/{found['dst_len']}"
    if found["type"] != RTN_UNICAST:
        to += f" (type {found['type']})"
    if space == "middle" and found.get("table") != state.MARKED_TABLE:
        to += f" (table {found.get('table')})"
    device = names.get(found.get("oif") or 0, "?")
    return state.route(space, to, device, str(found.get("gateway") or ""))


def rule_line(space: str, found: Any) -> str:
    action = {
        FR_ACT_TO_TBL: f"lookup {found.get('FRA_TABLE')}",
        FR_ACT_GOTO: f"goto {found.get('FRA_GOTO')}",
        FR_ACT_NOP: "nop",
        FR_ACT_BLACKHOLE: "blackhole",
    }.get(found["action"], f"action {found['action']}")
    mark = found.get("FRA_FWMARK") or 0
    return state.rule(space, FAMILIES[found["family"]], found.get("FRA_PRIORITY") or 0,
                      str(found.get("FRA_IIFNAME") or ""), mark, action)  # fmt: skip


def _settings(space: str, wanted: Mapping[str, str], lines: dict[str, set[str]]) -> None:
    found = ((name, spaces.read_sysctl(name)) for name in wanted)
    lines[state.SETTINGS] |= {state.setting(space, name, value) for name, value in _known(found)}


def _known(found: Iterator[tuple[str, str | None]]) -> Iterator[tuple[str, str]]:
    for name, value in found:
        if value is not None:
            yield name, value
