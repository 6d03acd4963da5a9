"""Makes links, addresses, routes and settings what `state.py` says, by netlink and /proc/sys.

Each function may run again at any time and ends the same way. Nothing is touched but devices,
tables and namespaces of ours. It must not be called before the rules are loaded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from ipaddress import ip_interface
from typing import Any, TypeVar

from reconcilers.network import readlinks, spaces, state
from reconcilers.network.addresses import LINK4, LINK6, mac
from reconcilers.network.routing import Routing
from reconcilers.network.rtmessages import Route, Rule
from reconcilers.network.wanted import MARK, Wanted
from specs.names import HostNames

T = TypeVar("T")

# include/uapi/linux/if_addr.h: no duplicate address detection, no route of its own
_IFA_F_NODAD, _IFA_F_NOPREFIXROUTE = 0x02, 0x200
_SCOPE_LINK = 253  # include/uapi/linux/rtnetlink.h
_IP4, _IP6 = socket.AF_INET, socket.AF_INET6


def raise_links(wanted: Wanted) -> None:
    """Both namespaces' links with all that is on them (blocking). Raises HostError."""
    with worded():
        spaces.inside(wanted.vmm_space, lambda: _settle(state.VMM_SETTINGS))
        _host_first(wanted)
        _raise_inner(wanted)
        _host_last(wanted)


def raise_inner(wanted: Wanted) -> None:
    """The same of the two namespaces alone; their uplink must be there. Raises HostError."""
    with worded():
        spaces.inside(wanted.vmm_space, lambda: _settle(state.VMM_SETTINGS))
        _raise_inner(wanted)


def _raise_inner(wanted: Wanted) -> None:
    vmm = spaces.open_space(wanted.vmm_space)
    try:
        spaces.inside(wanted.middle_space, lambda: _middle(wanted, vmm))
    finally:
        os.close(vmm)
    spaces.inside(wanted.vmm_space, lambda: _vmm(wanted))


def remove_host_link(name: str) -> None:
    """The host's end of a sandbox's uplink, and with it the other end (blocking)."""
    with worded(), netlink() as ip, contextlib.suppress(OSError):
        ip.link("delete", index=socket.if_nametoindex(name))


def remove_rules(device: str) -> None:
    """Every `ip rule` of the host that names this device (blocking)."""
    with worded(), netlink() as ip:
        for found in _read(Routing.rules):
            if found.device == device:
                _delete_rule(ip, found)


def rule_devices() -> set[str]:
    """Every device that an `ip rule` of the host names, also one that is gone (blocking)."""
    with readlinks.worded("read"):
        return {found.device for found in _read(Routing.rules) if found.device}


def attach_tap(names: HostNames) -> None:
    """Put the tap on the bridge; in the VMM's namespace, where it was just opened."""
    with worded(), netlink() as ip:
        bridge, tap = number_of(names.interface("b")), number_of(names.interface("t"))
        ip.link("set", index=tap, master=bridge, mtu=_mtus()[bridge])
        ip.link("set", index=tap, state="up")


def names() -> list[str]:
    """Every link of the calling thread's namespace."""
    return [name for _, name in socket.if_nameindex()]


def _host_first(wanted: Wanted) -> None:
    """Rules and link towards the host, still down: nothing leads anywhere before the rules do."""
    with netlink() as ip:
        _set_rules(ip, wanted)
        device = wanted.host_side
        middle = spaces.inside(wanted.middle_space, lambda: number_of(wanted.uplink))
        if bool(number_of(device)) != bool(middle):
            _delete(ip, device)
            spaces.inside(wanted.middle_space, lambda: _delete_here(wanted.uplink))
        if not number_of(device):
            target = spaces.open_space(wanted.middle_space)
            try:
                peer = {"ifname": wanted.uplink, "net_ns_fd": target, "mtu": wanted.mtu,
                        "address": mac(wanted.names, "uplink")}  # fmt: skip
                ip.link("add", ifname=device, kind="veth", mtu=wanted.mtu, peer=peer,
                        address=mac(wanted.names, "host"))  # fmt: skip
            finally:
                os.close(target)


def _host_last(wanted: Wanted) -> None:
    own, device = wanted.addresses, wanted.host_side
    with netlink() as ip:
        _settle(state.host_settings(wanted))
        index = number_of(device)
        _set_mtu(ip, index, wanted.mtu)
        addresses = [f"{own.host4}/{LINK4}"]
        routes = [(str(own.uplink4), ""), (str(own.guest_link4), str(own.middle4))]
        if wanted.ipv6:
            addresses += [f"{own.host6}/{LINK6}"]
            routes += [(str(own.uplink6), ""), (str(own.guest_link6), str(own.middle6))]
        _set_addresses(ip, index, addresses)
        ip.link("set", index=index, state="up")
        _set_routes(ip, readlinks.MAIN_TABLE, {index: routes})


def _middle(wanted: Wanted, vmm: int) -> None:
    own = wanted.addresses
    with netlink() as ip:
        _clear_links(ip, (wanted.guest_side, wanted.uplink))
        _set_middle_rules(ip)
        _guest_link(ip, wanted, vmm)
        _settle(state.middle_settings(wanted))
        guest, uplink = number_of(wanted.guest_side), number_of(wanted.uplink)
        for index in (guest, uplink):
            _set_mtu(ip, index, wanted.mtu)
        addresses = [f"{own.middle4}/{LINK4}"]
        routes = [(str(own.uplink4), ""), ("default", str(own.host4))]
        if wanted.ipv6:
            addresses += [f"{own.middle6}/{LINK6}"]
            routes += [(str(own.uplink6), ""), ("default", str(own.host6))]
        _set_addresses(ip, guest, [f"{own.gateway4}/{LINK4}", f"{own.gateway6}/{LINK6}"])
        _set_addresses(ip, uplink, addresses)
        for index in (guest, uplink):
            ip.link("set", index=index, state="up")
        links = {guest: [(str(own.guest_link4), ""), (str(own.guest_link6), "")], uplink: routes}
        _clear_main(ip)
        _set_routes(ip, state.MARKED_TABLE, links)


def _guest_link(ip: Any, wanted: Wanted, vmm: int) -> None:
    there = spaces.inside(wanted.vmm_space, lambda: number_of(wanted.inner))
    if bool(number_of(wanted.guest_side)) != bool(there):
        _delete(ip, wanted.guest_side)
        spaces.inside(wanted.vmm_space, lambda: _delete_here(wanted.inner))
    if not number_of(wanted.guest_side):
        peer = {"ifname": wanted.inner, "net_ns_fd": vmm, "mtu": wanted.mtu}
        ip.link("add", ifname=wanted.guest_side, kind="veth", mtu=wanted.mtu, peer=peer,
                address=mac(wanted.names, "gateway"))  # fmt: skip


def _vmm(wanted: Wanted) -> None:
    with netlink() as ip:
        _clear_links(ip, (wanted.bridge, wanted.inner, wanted.tap))
        if not number_of(wanted.bridge):
            # no spanning tree, no multicast bookkeeping: two ports and one of them is a guest
            ip.link("add", ifname=wanted.bridge, kind="bridge", br_stp_state=0, br_mcast_snooping=0,
                    br_ageing_time=0)  # fmt: skip
        bridge = number_of(wanted.bridge)
        # 0 is a hub. One that learns keeps each source MAC for 300 s, in kernel memory that no
        # control group counts, and a guest sends as many of them as it likes.
        ip.link("set", index=bridge, kind="bridge", br_ageing_time=0)
        for name in (wanted.inner, wanted.tap):
            if index := number_of(name):
                ip.link("set", index=index, master=bridge)
                _set_mtu(ip, index, wanted.mtu)
                ip.link("set", index=index, state="up")
        _set_mtu(ip, bridge, wanted.mtu)
        ip.link("set", index=bridge, state="up")


def _clear_links(ip: Any, wanted: Collection[str]) -> None:
    """In a namespace of ours: what somebody put there goes, the kernel's own devices are down."""
    for found in _read(Routing.links):
        if found.name in ("lo", *wanted) or readlinks.idle(found):
            continue
        if readlinks.is_fallback(found):
            ip.link("set", index=found.index, state="down")
        else:
            ip.link("delete", index=found.index)


def _set_mtu(ip: Any, index: int, mtu: int) -> None:
    if _mtus().get(index) != mtu:
        ip.link("set", index=index, mtu=mtu)


def _set_addresses(ip: Any, index: int, wanted: Iterable[str]) -> None:
    have: dict[str, tuple[str, int]] = {}
    for found in _read(Routing.addresses):
        if found.device == index and found.scope == readlinks.RT_SCOPE_UNIVERSE:
            have[f"{found.text}/{found.prefix}"] = (found.text, found.prefix)
    for text in have.keys() - set(wanted):
        ip.addr("del", index=index, address=have[text][0], prefixlen=have[text][1])
    for text in set(wanted) - have.keys():
        one = ip_interface(text)
        flags = _IFA_F_NOPREFIXROUTE | (_IFA_F_NODAD if one.version == 6 else 0)
        ip.addr("add", index=index, address=str(one.ip), prefixlen=one.network.prefixlen,
                flags=flags)  # fmt: skip


def _set_routes(ip: Any, table: int, wanted: dict[int, list[tuple[str, str]]]) -> None:
    """`wanted`: device -> (destination, gateway or nothing); links' own routes come first."""
    for found in _read(lambda kernel: kernel.routes(table)):
        # The host's main table is its own; the one of marked packets is ours alone.
        ours = table == state.MARKED_TABLE or found.device in wanted
        right = _is_wanted(found, wanted.get(found.device, ()))
        if ours and not right and not readlinks.link_local(found):
            ip.route("del", **_as_request(found))
    for device, routes in wanted.items():
        for to, via in routes:
            family = _IP6 if ":" in to + via else _IP4
            more: dict[str, Any] = {"gateway": via} if via else {}
            if not via and family == _IP4:
                more["scope"] = _SCOPE_LINK
            ip.route("replace", family=family, dst=to, oif=device, table=table, **more)


def _is_wanted(found: Route, wanted: Iterable[tuple[str, str]]) -> bool:
    to = found.to if found.length else "default"
    return (to, found.gateway) in wanted and found.kind == readlinks.RTN_UNICAST


def _clear_main(ip: Any) -> None:
    """A route in the middle's main table would be there for unmarked packets too."""
    for found in _read(lambda kernel: kernel.routes(readlinks.MAIN_TABLE)):
        if not readlinks.link_local(found):
            ip.route("del", **_as_request(found))


def _as_request(found: Route) -> dict[str, Any]:
    request: dict[str, Any] = {"family": found.family, "table": found.table, "type": found.kind}
    request["dst"] = found.to if found.length else "default"
    if found.family == _IP4:
        request["scope"] = found.scope  # without it only a route through a gateway is found
    more = {"oif": found.device, "gateway": found.gateway, "priority": found.priority}
    return request | {key: value for key, value in more.items() if value}


def _set_rules(ip: Any, wanted: Wanted) -> None:
    for family in (_IP4, _IP6) if wanted.host_ipv6 else (_IP4,):
        needed = [
            # Last first: a goto must find where it leads, and marked packets wait for it till then.
            {"priority": state.GO_ON_PRIORITY, "action": "nop"},
            {"priority": state.REFUSE_PRIORITY, "action": "blackhole"},
            {
                "priority": state.ALLOW_PRIORITY,
                "action": "goto",
                "goto": state.GO_ON_PRIORITY,
                "fwmark": MARK,
                "fwmask": 0xFFFFFFFF,
            },
        ]
        lines = {line for line in state.wanted_state(wanted).lines[state.RULES]
                 if line.startswith(f"host: IPv{readlinks.FAMILIES[family]} ")}  # fmt: skip
        seen = []
        for found in _read(Routing.rules):
            if found.family == family and found.device == wanted.host_side:
                line = readlinks.rule_line("host", found)
                if line not in lines or line in seen:
                    _delete_rule(ip, found)
                seen.append(line)
        for each in needed:
            with _already_there():
                ip.rule("add", family=family, iifname=wanted.host_side, **each)


def _set_middle_rules(ip: Any) -> None:
    right = set()
    for found in _read(Routing.rules):
        if (found.priority, found.mark, found.table, found.action, found.device) == (
            state.MIDDLE_PRIORITY, MARK, state.MARKED_TABLE, readlinks.FR_ACT_TO_TBL, ""
        ):  # fmt: skip
            right.add(found.family)
        elif found.priority not in readlinks.KERNEL_RULES:
            _delete_rule(ip, found)
    for family in (_IP4, _IP6):
        if family not in right:
            ip.rule("add", family=family, priority=state.MIDDLE_PRIORITY, fwmark=MARK,
                    fwmask=0xFFFFFFFF, table=state.MARKED_TABLE)  # fmt: skip


def _delete_rule(ip: Any, found: Rule) -> None:
    request: dict[str, Any] = {"family": found.family, "action": found.action}
    more = {"priority": found.priority, "iifname": found.device, "fwmark": found.mark,
            "fwmask": found.mask, "goto": found.goto, "table": found.table}  # fmt: skip
    request |= {key: value for key, value in more.items() if value}
    with _already_there():
        ip.rule("del", **request)


def _read(ask: Callable[[Routing], T]) -> T:
    with Routing() as kernel:
        return ask(kernel)


def _mtus() -> dict[int, int]:
    return {found.index: found.mtu for found in _read(Routing.links)}


def _settle(settings: dict[str, str]) -> None:
    for name, value in settings.items():
        if spaces.read_sysctl(name) not in (value, None):
            spaces.write_sysctl(name, value)


def number_of(name: str) -> int:
    """0 when there is no such link in the calling thread's namespace."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def _delete(ip: Any, name: str) -> None:
    if index := number_of(name):
        ip.link("delete", index=index)


def _delete_here(name: str) -> None:
    with netlink() as ip:
        _delete(ip, name)


def netlink() -> Any:
    """A routing socket of the calling thread's namespace, to change things through."""
    from pyroute2 import IPRoute  # 0.3 s to import: only who makes a network pays

    return IPRoute()


@contextlib.contextmanager
def worded() -> Iterator[None]:
    """The kernel's refusals as HostError."""
    from pyroute2.netlink.exceptions import NetlinkError

    with readlinks.worded("set up"):
        try:
            yield
        except NetlinkError as error:
            raise OSError(error.code, os.strerror(error.code)) from error


@contextlib.contextmanager
def _already_there() -> Iterator[None]:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        if error.code not in (errno.EEXIST, errno.ENOENT, errno.ESRCH):
            raise
