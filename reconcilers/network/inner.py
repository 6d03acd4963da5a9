"""The part of a network that lies in an ordinary user's namespaces: made and mended.

The same namespaces, links and rules as root's, without the host's side: the middle namespace's
uplink is a tap, and pasta holds its other end. It runs in a process that has joined the user
namespace (`innerworker`), where both namespaces have the names that root's have. Plain values go
in and come out. It must not be used anywhere else.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from ipaddress import ip_address, ip_network

from reconcilers.network import links, netfilter, rules, spaces, state, tables, taps
from reconcilers.network import nftjson as nft
from reconcilers.network.addresses import addresses, first_slot, mac
from reconcilers.network.nftjson import Table
from reconcilers.network.state import State
from reconcilers.network.wanted import Wanted
from specs.egress import egress_of
from specs.errors import HostError
from specs.names import HostNames

# the kernel's own choice for who asks for none (ip-sysctl, ip_local_port_range): no service's
_PORTS = (32768, 60999)


@lru_cache(maxsize=1024)
def to_text(wanted: Wanted) -> str:
    """What a worker makes the same value of."""
    egress = wanted.egress
    plain = {
        "names": [wanted.names.instance, wanted.names.sandbox],
        "egress": egress.mode if egress.mode != "list" else [str(each) for each in egress.entries],
        "mtu": wanted.mtu,
        "resolver": str(wanted.resolver or ""),
        "host": sorted(map(str, wanted.host_addresses)),
        "ipv6": wanted.ipv6,
        "host_ipv6": wanted.host_ipv6,
    }
    return json.dumps(plain)


@lru_cache(maxsize=1024)
def from_text(text: str) -> Wanted:
    plain = json.loads(text)
    names = HostNames(*plain["names"])
    return Wanted(
        names=names,
        addresses=addresses(names, first_slot(names)),
        egress=egress_of(plain["egress"]),
        mtu=plain["mtu"],
        resolver=ip_address(plain["resolver"]) if plain["resolver"] else None,
        host_addresses=frozenset(map(ip_network, plain["host"])),
        ipv6=plain["ipv6"],
        host_ipv6=plain["host_ipv6"],
    )


@lru_cache(maxsize=1024)
def wanted_state(wanted: Wanted) -> State:
    """As root's, without the host's side and with a tap as the uplink. Pure."""
    whole = state.wanted_state(wanted)
    veth = state.link("middle", wanted.uplink, "veth", wanted.mtu)
    lines = {
        item: frozenset(each for each in found if not each.startswith("host: "))
        for item, found in whole.lines.items()
    }
    lines[state.LINKS] = lines[state.LINKS] - {veth} | {
        state.link("middle", wanted.uplink, "tun", wanted.mtu)
    }
    return State(lines, whole.tap)


@lru_cache(maxsize=1024)
def table(wanted: Wanted) -> Table:
    """Root's rules, and the guest's address masked: pasta answers one address at a time. Pure.

    pasta takes the source port of a guest's datagrams on the host as well, so which ports those can
    be is not left to the guest.
    """
    made = rules.middle_table(wanted)
    made.base_chain("translate", "nat", "postrouting", nft.SRCNAT, "accept")
    away = nft.match(nft.meta("oifname"), wanted.uplink)
    has_ports = nft.match(nft.meta("l4proto"), {"set": ["tcp", "udp"]})
    ports: nft.Expression = {"masquerade": {"port": {"range": list(_PORTS)}}}
    for address in (wanted.addresses.guest4, wanted.addresses.guest6):
        made.rule("translate", nft.from_address(address), away, has_ports, ports)
        made.rule("translate", nft.from_address(address), away, {"masquerade": None})
    return made


def build(wanted: Wanted) -> tuple[int, int, int]:
    """Everything from nothing, rules first. Descriptors of the VMM's namespace, of its tap and of
    pasta's. Raises HostError, CommandError.
    """
    spaces.create(wanted.vmm_space)
    _load(wanted)
    uplink = spaces.inside(wanted.middle_space, lambda: _uplink(wanted))
    links.raise_inner(wanted)
    tap = spaces.inside(wanted.vmm_space, lambda: taps.open_tap(wanted.names))
    return spaces.open_space(wanted.vmm_space), tap, uplink


def _uplink(wanted: Wanted) -> int:
    descriptor = taps.open_uplink(wanted.uplink)
    with links.worded(), links.netlink() as ip:
        index = links.number_of(wanted.uplink)
        ip.link("set", index=index, address=mac(wanted.names, "uplink"), mtu=wanted.mtu)
    return descriptor


def mend(wanted: Wanted) -> None:
    """Everything as wanted again, but for what only a new start brings. Raises HostError."""
    _load(wanted)
    if not spaces.inside(wanted.middle_space, lambda: links.number_of(wanted.uplink)):
        raise HostError("the uplink of the middle namespace is gone with its pasta")
    links.raise_inner(wanted)


def _load(wanted: Wanted) -> None:
    """The rules; what was let through under other ones is judged again."""
    made = table(wanted)

    def work() -> None:
        if not difference(made):
            return
        tables.load(made)
        if wrong := difference(made):
            raise HostError(f"the rules were loaded, and then {wrong}")
        netfilter.forget_connections()

    spaces.inside(wanted.middle_space, work)


def difference(made: Table) -> str:
    """How the calling thread's namespace's table differs from this one, empty when it does not."""
    found = tables.listing(made.name)
    if found is None:
        return "there is no table"
    return "" if tables.Comparison().same(made, found) else "the table holds other rules"


def compare(wanted: Wanted) -> tuple[str, int]:
    """How the rules in the calling thread's namespace differ, and the generation of which that is
    true: one that changed meanwhile is compared again.
    """
    generation = netfilter.generation()
    return difference(table(wanted)), generation


def show_under(name: str, descriptor: int) -> None:
    """Give a namespace the name that root's would have, in a mount namespace of our own."""
    from reconcilers.confinement import syscalls

    path = spaces.path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    syscalls.mount(f"/proc/self/fd/{descriptor}", str(path), None, syscalls.MS_BIND)
    os.close(descriptor)
