"""Makes links, addresses, routes and settings what `state.py` says, by netlink and /proc/sys.

Each function may run again at any time and ends the same way. Nothing is touched but devices,
tables and namespaces of ours. It must not be called before the rules are loaded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from ipaddress import ip_interface
from typing import Any

from reconcilers.network import readlinks, spaces, state
from reconcilers.network.addresses import LINK4, LINK6, mac
from reconcilers.network.wanted import MARK, Wanted
from specs.names import HostNames

# include/uapi/linux/if_addr.h: no duplicate address detection, no route of its own
_IFA_F_NODAD, _IFA_F_NOPREFIXROUTE = 0x02, 0x200
_SCOPE_LINK = 253  # include/uapi/linux/rtnetlink.h
_IP4, _IP6 = socket.AF_INET, socket.AF_INET6


def raise_links(wanted: Wanted) -> None:
    """Both namespaces' links with all that is on them (blocking). Raises HostError."""
    with readlinks.worded("set up"):
        spaces.inside(wanted.vmm_space, lambda: _settle(state.VMM_SETTINGS))
        _host_first(wanted)
        _raise_inner(wanted)
        _host_last(wanted)


def raise_inner(wanted: Wanted) -> None:
    """The same of the two namespaces alone; their uplink must be there. Raises HostError."""
    with readlinks.worded("set up"):
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
    with readlinks.worded("set up"), readlinks.netlink() as ip, contextlib.suppress(OSError):
        ip.link("delete", index=socket.if_nametoindex(name))


def remove_rules(device: str) -> None:
    """Every `ip rule` of the host that names this device (blocking)."""
    with readlinks.worded("set up"), readlinks.netlink() as ip:
        for family in (_IP4, _IP6):
            for found in ip.get_rules(family=family):
                if found.get("FRA_IIFNAME") == device:
                    _delete_rule(ip, family, found)


def rule_devices() -> set[str]:
    """Every device that an `ip rule` of the host names, also one that is gone (blocking)."""
    with readlinks.worded("set up"), readlinks.netlink() as ip:
        return {
            str(name)
            for family in (_IP4, _IP6)
            for found in ip.get_rules(family=family)
            if (name := found.get("FRA_IIFNAME"))
        }


def attach_tap(names: HostNames) -> None:
    """Put the tap on the bridge; in the VMM's namespace, where it was just opened."""
    with readlinks.worded("set up"), readlinks.netlink() as ip:
        bridge, tap = number_of(names.interface("b")), number_of(names.interface("t"))
        [found] = ip.link("get", index=bridge)
        ip.link("set", index=tap, master=bridge, mtu=found.get("mtu"))
        ip.link("set", index=tap, state="up")


def names() -> list[str]:
    """Every link of the calling thread's namespace."""
    return [name for _, name in socket.if_nameindex()]


def _host_first(wanted: Wanted) -> None:
    """Rules and link towards the host, still down: nothing leads anywhere before the rules do."""
    with readlinks.netlink() as ip:
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
    with readlinks.netlink() as ip:
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
    with readlinks.netlink() as ip:
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
    with readlinks.netlink() as ip:
        _clear_links(ip, (wanted.bridge, wanted.inner, wanted.tap))
        if not number_of(wanted.bridge):
            # no spanning tree, no multicast bookkeeping: two ports and one of them is a guest
            ip.link("add", ifname=wanted.bridge, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
        bridge = number_of(wanted.bridge)
        for name in (wanted.inner, wanted.tap):
            if index := number_of(name):
                ip.link("set", index=index, master=bridge)
                _set_mtu(ip, index, wanted.mtu)
                ip.link("set", index=index, state="up")
        _set_mtu(ip, bridge, wanted.mtu)
        ip.link("set", index=bridge, state="up")


def _clear_links(ip: Any, wanted: Collection[str]) -> None:
    """In a namespace of ours: what somebody put there goes, the kernel's own devices are down."""
    for found in ip.get_links():
        name, up = found.get("ifname"), readlinks.is_up(found)
        if name == "lo" or name in wanted or readlinks.idle(name, readlinks.kind_of(found), up):
            continue
        if readlinks.idle(name, readlinks.kind_of(found), False):
            ip.link("set", index=found["index"], state="down")
        else:
            ip.link("delete", index=found["index"])


def _set_mtu(ip: Any, index: int, mtu: int) -> None:
    [found] = ip.link("get", index=index)
    if found.get("mtu") != mtu:
        ip.link("set", index=index, mtu=mtu)


def _set_addresses(ip: Any, index: int, wanted: Iterable[str]) -> None:
    have: dict[str, tuple[str, int]] = {}
    for found in ip.get_addr(index=index):
        if found["scope"] == readlinks.RT_SCOPE_UNIVERSE:
            text = str(found.get("local") or found.get("address"))
            have[f"{text}/{found['prefixlen']}"] = (text, found["prefixlen"])
    for text in have.keys() - set(wanted):
        ip.addr("del", index=index, address=have[text][0], prefixlen=have[text][1])
    for text in set(wanted) - have.keys():
        one = ip_interface(text)
        flags = _IFA_F_NOPREFIXROUTE | (_IFA_F_NODAD if one.version == 6 else 0)
        ip.addr("add", index=index, address=str(one.ip), prefixlen=one.network.prefixlen,
                flags=flags)  # fmt: skip


def _set_routes(ip: Any, table: int, wanted: dict[int, list[tuple[str, str]]]) -> None:
    """`wanted`: device -> (destination, gateway or nothing); links' own routes come first."""
    for found in ip.get_routes(table=table):
        ours = found.get("oif") in wanted and not readlinks.link_local(found)
        if ours and not _is_wanted(found, wanted[found.get("oif")]):
            ip.route("del", **_as_request(found))
    for device, routes in wanted.items():
        for to, via in routes:
            family = _IP6 if ":" in to + via else _IP4
            more: dict[str, Any] = {"gateway": via} if via else {}
            if not via and family == _IP4:
                more["scope"] = _SCOPE_LINK
            ip.route("replace", family=family, dst=to, oif=device, table=table, **more)


def _is_wanted(found: Any, wanted: Iterable[tuple[str, str]]) -> bool:
    to = f"{found.get('dst')}/{found['dst_len']}" if found["dst_len"] else "default"
    return (to, str(found.get("gateway") or "")) in wanted and found["type"] == 1


def _clear_main(ip: Any) -> None:
    """A route in the middle's main table would be there for unmarked packets too."""
    for found in ip.get_routes(table=readlinks.MAIN_TABLE):
        if not readlinks.link_local(found):
            ip.route("del", **_as_request(found))


def _as_request(found: Any) -> dict[str, Any]:
    request = {"family": found["family"], "table": found.get("table"), "type": found["type"]}
    request["dst"] = f"{found.get('dst')}/{found['dst_len']}" if found["dst_len"] else "default"
    for key in ("oif", "gateway", "priority"):
        if (value := found.get(key)) is not None:
            request[key] = value
    return request


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
        for found in ip.get_rules(family=family):
            if found.get("FRA_IIFNAME") == wanted.host_side:
                line = readlinks.rule_line("host", found)
                if line not in lines or line in seen:
                    _delete_rule(ip, family, found)
                seen.append(line)
        for each in needed:
            with _already_there():
                ip.rule("add", family=family, iifname=wanted.host_side, **each)


def _set_middle_rules(ip: Any) -> None:
    for family in (_IP4, _IP6):
        wanted = False
        for found in ip.get_rules(family=family):
            priority = found.get("FRA_PRIORITY") or 0
            if (
                priority == state.MIDDLE_PRIORITY
                and found.get("FRA_FWMARK") == MARK
                and (found.get("FRA_TABLE") == state.MARKED_TABLE and found["action"] == 1)
            ):
                wanted = True
            elif priority not in (0, 32766, 32767):  # the kernel's own three
                _delete_rule(ip, family, found)
        if not wanted:
            ip.rule("add", family=family, priority=state.MIDDLE_PRIORITY, fwmark=MARK,
                    fwmask=0xFFFFFFFF, table=state.MARKED_TABLE)  # fmt: skip


def _delete_rule(ip: Any, family: int, found: Any) -> None:
    request: dict[str, Any] = {"family": family, "action": found["action"]}
    for name in ("priority", "iifname", "fwmark", "fwmask", "goto", "table"):
        if value := found.get(f"FRA_{name.upper()}"):
            request[name] = value
    with _already_there():
        ip.rule("del", **request)


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
    with readlinks.netlink() as ip:
        _delete(ip, name)


@contextlib.contextmanager
def _already_there() -> Iterator[None]:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        if error.code not in (errno.EEXIST, errno.ENOENT, errno.ESRCH):
            raise
