"""What the host around the sandboxes is like: its addresses, its way out, its resolver.

Read in the controller's own network namespace, on every pass, because all of it may change while a
sandbox runs. It changes nothing: forwarding is the administrator's to allow.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from reconcilers.network import readlinks, spaces
from reconcilers.network.routing import Routing
from reconcilers.network.rtmessages import Link, Route
from specs.egress import Address, Egress, Network
from specs.names import INTERFACE_PREFIX

RESOLVER_FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
# IPv6 needs 1,280 on every link (RFC 8200); a tap takes no more than 65,521 (drivers/net/tun.c)
MTU_MIN, MTU_MAX, MTU_DEFAULT = 1280, 65521, 1500
_FILE_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`mtu` is the uplink's, in bytes. `ipv6` says that the host speaks IPv6 at all, `ipv6_route`
    that it has a default route for it, `ipv6_known` that its kernel does. `resolvers` are usable
    nameservers, the first one first.
    """

    mtu: int
    addresses: frozenset[Address | Network]
    forwards4: bool
    forwards6: bool
    ipv6: bool
    ipv6_route: bool
    resolvers: tuple[Address, ...]
    ipv6_known: bool = True

    def problem(self, egress: Egress) -> tuple[str, str]:
        """What stands against a bridged sandbox here, and its fix; two empty texts when nothing."""
        if not self.forwards4:
            return (
                "this host does not forward IPv4 packets (net.ipv4.ip_forward is 0)",
                "sysctl -w net.ipv4.ip_forward=1",
            )
        if not self.ipv6_known:
            return (
                "this host's kernel runs without IPv6, which every sandbox's own link has",
                "boot it without ipv6.disable=1 (or modprobe ipv6)",
            )
        named = [each for each in egress.entries if each.network.version == 6]
        if named and not self.ipv6:
            return (
                f"egress names {named[0]}, and this host has IPv6 switched off",
                "sysctl -w net.ipv6.conf.all.disable_ipv6=0, or remove the entry",
            )
        if (named or self.ipv6_route) and not self.forwards6:
            why = f"egress names {named[0]}" if named else "the host has an IPv6 default route"
            return (
                f"this host does not forward IPv6 packets, and {why}",
                "sysctl -w net.ipv6.conf.all.forwarding=1 (with net.ipv6.conf.IFACE.accept_ra=2 "
                "where the host itself learns its route from router advertisements)",
            )
        return "", ""

    def routes_ipv6(self, egress: Egress) -> bool:
        """Whether the guest gets an IPv6 default route."""
        named = any(each.network.version == 6 for each in egress.entries)
        return self.ipv6 and self.forwards6 and (named or self.ipv6_route)

    def resolver(self, ipv6: bool) -> Address | None:
        """The first nameserver that the guest's packets can get to."""
        return next((each for each in self.resolvers if ipv6 or each.version == 4), None)


def look(resolver: Address | None = None) -> Surroundings:
    """Read it (blocking). `resolver`, when given, is asked instead of the host's own.

    Raises OSError.
    """
    with Routing() as kernel:
        links = {each.index: each for each in kernel.links()}
        ours = {each.index for each in links.values() if each.name.startswith(INTERFACE_PREFIX)}
        addresses = frozenset(
            ipaddress.ip_address(each.text)
            for each in kernel.addresses()
            if each.device not in ours and each.family in readlinks.FAMILIES
        )
        routes = [
            each
            for each in kernel.routes(readlinks.MAIN_TABLE)
            if each.device not in ours and each.kind == readlinks.RTN_UNICAST
        ]
    defaults = [each for each in routes if each.length == 0]
    disabled = spaces.read_sysctl("ipv6/conf/default/disable_ipv6")
    return Surroundings(
        mtu=_mtu(defaults or routes, links),
        addresses=frozenset(each for each in addresses if not never_named(each)),
        forwards4=spaces.read_sysctl("ipv4/ip_forward") == "1",
        forwards6=spaces.read_sysctl("ipv6/conf/all/forwarding") == "1",
        ipv6=disabled == "0",
        ipv6_route=any(each.family == socket.AF_INET6 for each in defaults),
        resolvers=(resolver,) if resolver is not None else _resolvers(),
        ipv6_known=disabled is not None,
    )


def never_named(found: Address | Network) -> bool:
    """What no entry of an egress can name: the rules refuse it in any case, and such addresses come
    and go with every container's link.
    """
    six = found.version == 6 and found.is_link_local
    return six or found.is_loopback or found.is_multicast


def _mtu(routes: Iterable[Route], links: Mapping[int, Link]) -> int:
    """The smallest on the way out: of the devices of these routes, or what the routes say."""
    found = []
    for each in routes:
        for index in (each.device, *each.hops):
            if index in links and links[index].name != "lo":
                found.append(links[index].mtu)
        if each.mtu:
            found.append(each.mtu)
    return max(MTU_MIN, min([*found, MTU_MAX])) if found else MTU_DEFAULT


def _resolvers() -> tuple[Address, ...]:
    for path in RESOLVER_FILES:
        try:
            with path.open("rb") as file:
                text = file.read(_FILE_MAX).decode("utf-8", "replace")
        except OSError:
            continue
        if found := nameservers(text):
            return found
    return ()


def nameservers(text: str) -> tuple[Address, ...]:
    """The addresses of a resolv.conf(5) that another machine could ask, in their order."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            address = ipaddress.ip_address(words[1])
        except ValueError:
            continue
        # 127.0.0.53 is the host's own; fe80::1%eth0 means something on one link only
        off_limits = address.is_loopback or address.is_unspecified or address.is_multicast
        if not (off_limits or (address.version == 6 and address.is_link_local)):
            found.append(address)
    return tuple(found)
