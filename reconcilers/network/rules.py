"""The rules of one sandbox as two nftables tables: one in the middle namespace, one on the host.

Pure: the same value always gives the same commands. In both tables a packet from the guest moves on
only because a rule marked it, and an `ip rule` leads only marked packets to a route. So when a
table is flushed, nothing passes, rather than everything.
"""

from __future__ import annotations

import ipaddress

from reconcilers.network import nftjson as nft
from reconcilers.network.addresses import link_local
from reconcilers.network.nftjson import ACCEPT, DROP, ESTABLISHED, Table, count, match, meta
from reconcilers.network.wanted import MARK, MIDDLE_TABLE, Wanted
from specs.egress import Address, Entry, Network
from specs.names import INTERFACE_PREFIX

DNS_PORT = 53
# What `egress: all` does not reach. Only an entry that lies within one of these opens a part of it.
DENIED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # RFC 1122: this network
        "10.0.0.0/8",  # RFC 1918
        "100.64.0.0/10",  # RFC 6598: carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # RFC 3927: link-local, and where clouds keep their metadata
        "172.16.0.0/12",  # RFC 1918
        "192.0.0.0/24",  # RFC 6890: protocol assignments
        "192.168.0.0/16",  # RFC 1918
        "198.18.0.0/15",  # RFC 2544: the sandboxes themselves
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "::/128",
        "::1/128",
        "::ffff:0.0.0.0/96",  # IPv4-mapped
        "64:ff9b::/96",  # RFC 6052: IPv4 behind a NAT64, denied addresses too
        "64:ff9b:1::/48",  # RFC 8215
        "2002::/16",  # RFC 3056: IPv4 behind 6to4
        "fc00::/7",  # RFC 4193: unique local
        "fe80::/10",  # link-local
        "fec0::/10",  # RFC 3879: what site-local was
        "ff00::/8",  # multicast
    )
)
# neighbour discovery (RFC 4861); everything else about links a guest is told, not asked
_NEIGHBOURS = match(
    nft.field("icmpv6", "type"), {"set": ["nd-neighbor-solicit", "nd-neighbor-advert"]}
)
# what every Linux says on a new link; nobody answers, and it is no attempt at anything
_CHATTER = match(
    nft.field("icmpv6", "type"),
    {"set": ["mld-listener-report", "mld2-listener-report", "nd-router-solicit"]},
)
_UNSPECIFIED = ipaddress.IPv6Address("::")  # who asks whether its own address is taken; not kept
_ECHO = {4: match(nft.field("icmp", "type"), "echo-request"),
         6: match(nft.field("icmpv6", "type"), "echo-request")}  # fmt: skip
_SYN = match(nft.field("tcp", "flags"), "syn", "in")
_CLAMP = {
    "mangle": {
        "key": {"tcp option": {"name": "maxseg", "field": "size"}},
        "value": {"rt": {"key": "mtu"}},
    }
}
_ALLOW = (nft.set_mark(MARK), ACCEPT)
# At once, of one guest. The host's kernel tracks them, too, up to nf_conntrack_max of everybody's
# (65,536 to 262,144 by its memory), and then drops whatever is new.
CONNECTIONS_MAX = 8192
PASSED = "passed"  # the one counter that does not count drops
MIDDLE_COUNTERS = ("spoofed", "host", "private", "egress", "input", "uplink", "connections", PASSED)
HOST_COUNTERS = ("spoofed", "host", "sandbox", "forward")


def middle_table(wanted: Wanted) -> Table:
    """The table of the middle namespace: what the guest may send, and to whom."""
    own = wanted.addresses
    guest, uplink = _in(wanted.guest_side), _in(wanted.uplink)
    table = Table(MIDDLE_TABLE)
    for name in MIDDLE_COUNTERS:
        table.counter(name)

    table.base_chain("classify", "filter", "prerouting", nft.MANGLE, "drop")
    for chain in ("guest", "entries", "back"):
        table.chain(chain)
    table.rule("classify", guest, nft.jump("guest"))
    table.rule("classify", uplink, nft.jump("back"))

    mac = match(nft.field("ether", "saddr"), wanted.guest_mac, "!=")
    table.rule("guest", mac, count("spoofed"), DROP)
    # The kernel keeps a neighbour for each address that solicits, 1,024 of them for all namespaces
    # of the host together: whoever makes up addresses fills that table for everybody.
    for each in (own.guest6, link_local(wanted.guest_mac), _UNSPECIFIED):
        table.rule("guest", nft.from_address(each), _NEIGHBOURS, ACCEPT)
    table.rule("guest", _CHATTER, DROP)
    for address in (own.guest4, own.guest6):
        table.rule("guest", nft.from_address(address, "!="), count("spoofed"), DROP)
    if wanted.egress.mode == "none":
        table.rule("guest", count("egress"), DROP)
    else:
        _towards_gateway(table, wanted)
        table.rule("guest", nft.jump("entries"))
        table.rule("guest", count("egress"), DROP)
        _entries(table, wanted)

    table.rule("back", _NEIGHBOURS, ACCEPT)
    table.rule("back", _CHATTER, DROP)
    table.rule("back", ESTABLISHED, *_ALLOW)
    table.rule("back", count("uplink"), DROP)

    if wanted.resolver is not None and wanted.dns is not None:
        table.base_chain("resolve", "nat", "prerouting", nft.DSTNAT, "accept")
        to = {"family": nft.of_family(wanted.resolver.version), "addr": str(wanted.resolver)}
        asked = (guest, nft.to_address(wanted.dns), *nft.ports(DNS_PORT))
        table.rule("resolve", *asked, {"dnat": to})

    table.base_chain("pass", "filter", "forward", nft.FILTER, "drop")
    table.rule("pass", _SYN, _CLAMP)
    full = (nft.NEW, nft.more_connections_than(CONNECTIONS_MAX), count("connections"))
    table.rule("pass", guest, _out(wanted.uplink), *full, DROP)
    table.rule("pass", guest, _out(wanted.uplink), _marked(), count(PASSED), ACCEPT)
    table.rule("pass", uplink, _out(wanted.guest_side), ESTABLISHED, ACCEPT)

    table.base_chain("answer", "filter", "input", nft.FILTER, "drop")
    table.rule("answer", _NEIGHBOURS, ACCEPT)
    for echo in _ECHO.values():
        table.rule("answer", guest, _marked(), echo, ACCEPT)
    table.rule("answer", count("input"), DROP)
    return table


def _towards_gateway(table: Table, wanted: Wanted) -> None:
    """The gateway answers pings, and DNS where there is any; nothing else is there."""
    own = wanted.addresses
    for gateway in (own.gateway4, own.gateway6):
        table.rule("guest", nft.to_address(gateway), _ECHO[gateway.version], *_ALLOW)
    if wanted.dns is not None:
        table.rule("guest", nft.to_address(wanted.dns), *nft.ports(DNS_PORT), *_ALLOW)
    for gateway in (own.gateway4, own.gateway6):
        table.rule("guest", nft.to_address(gateway), count("host"), DROP)


def _entries(table: Table, wanted: Wanted) -> None:
    """One address by name, then the host's own, then named parts of what is denied, then the rest.

    In this order a range never opens the host's own addresses, and a wide one never opens a denied
    range that it happens to contain.
    """
    entries = wanted.egress.entries
    inside = [each for each in entries if not each.single and is_denied(each)]
    wide = [each for each in entries if not each.single and not is_denied(each)]
    _each(table, [each for each in entries if each.single])
    for version in (4, 6):
        if own := nft.to_networks(version, wanted.host_addresses):
            table.rule("entries", *own, count("host"), DROP)
    _each(table, inside)
    for version in (4, 6):
        table.rule("entries", *nft.to_networks(version, DENIED), count("private"), DROP)
    _each(table, wide)
    if wanted.egress.mode == "all":
        table.rule("entries", *_ALLOW)


def _each(table: Table, entries: list[Entry]) -> None:
    for entry in entries:
        to = nft.to_networks(entry.network.version, [entry.network])
        table.rule("entries", *to, *nft.ports(entry.port), *_ALLOW)


def is_denied(entry: Entry) -> bool:
    """Whether an entry lies within a range that `all` does not reach."""
    return any(
        entry.network.version == each.version and entry.network.subnet_of(each)  # type: ignore[arg-type]
        for each in DENIED
    )


def host_table(wanted: Wanted) -> Table:
    """The table in the host's namespace: NAT, and the host's own wall against the sandbox."""
    own = wanted.addresses
    sandbox = _in(wanted.host_side)
    table = Table(wanted.host_table)
    for name in HOST_COUNTERS:
        table.counter(name)

    # before the host's own DNAT, which could turn an address of the host into another one
    table.base_chain("classify", "filter", "prerouting", nft.MANGLE, "accept")
    table.chain("sandbox")
    table.rule("classify", sandbox, nft.jump("sandbox"))
    table.rule("sandbox", _NEIGHBOURS, ACCEPT)
    table.rule("sandbox", _CHATTER, DROP)
    for address in (own.guest4, own.guest6):
        table.rule("sandbox", nft.from_address(address, "!="), count("spoofed"), DROP)
    for address, port in host_openings(wanted):
        table.rule("sandbox", nft.to_address(address), *nft.ports(port), *_ALLOW)
    local = {"set": ["local", "broadcast", "anycast", "multicast"]}
    kind = match({"fib": {"result": "type", "flags": ["daddr"]}}, local)
    table.rule("sandbox", kind, count("host"), DROP)
    table.rule("sandbox", *_ALLOW)

    table.base_chain("answer", "filter", "input", nft.FILTER, "accept")
    table.rule("answer", sandbox, _NEIGHBOURS, ACCEPT)
    table.rule("answer", sandbox, _marked(), ACCEPT)
    table.rule("answer", sandbox, count("host"), DROP)

    table.base_chain("pass", "filter", "forward", nft.FILTER, "accept")
    others = match(meta("oifname"), f"{INTERFACE_PREFIX}h*")
    table.rule("pass", sandbox, others, count("sandbox"), DROP)
    # The mark has done its work once the route is found; the host's own rules see none.
    table.rule("pass", sandbox, _marked(), nft.set_mark(0), ACCEPT)
    table.rule("pass", sandbox, count("forward"), DROP)
    table.rule("pass", _out(wanted.host_side), ESTABLISHED, ACCEPT)
    table.rule("pass", _out(wanted.host_side), count("forward"), DROP)

    table.base_chain("translate", "nat", "postrouting", nft.SRCNAT, "accept")
    away = match(meta("oifname"), wanted.host_side, "!=")
    for address in (own.guest4, own.guest6):
        table.rule("translate", nft.from_address(address), away, {"masquerade": None})
    return table


def host_openings(wanted: Wanted) -> list[tuple[Address, int]]:
    """Addresses that are named one by one; only these may be the host's own."""
    found = [(each.network.network_address, each.port)
             for each in wanted.egress.entries if each.single]  # fmt: skip
    if wanted.resolver is not None and wanted.dns is not None:
        found.append((wanted.resolver, DNS_PORT))
    return found


def _in(interface: str) -> nft.Expression:
    return match(meta("iifname"), interface)


def _out(interface: str) -> nft.Expression:
    return match(meta("oifname"), interface)


def _marked() -> nft.Expression:
    return match(meta("mark"), MARK)
