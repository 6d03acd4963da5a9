"""What the networks of root and of an ordinary user have in common: what one must be, in one value,
how a reading of it is written, and the part of what `box describe` shows that both have. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from reconcilers.network.addresses import addresses
from reconcilers.network.surroundings import Surroundings
from reconcilers.network.wanted import Wanted
from specs.boxfile import Boxfile
from specs.egress import egress_of
from specs.names import HostNames
from specs.reading import Mend, Reading

AS_WANTED = "as wanted"


def wanted_of(names: HostNames, box: Boxfile, around: Surroundings, slot: int) -> Wanted:
    """The network that a Boxfile asks for, on such a host, with the addresses of `slot`."""
    egress = egress_of(box.egress)
    ipv6 = around.routes_ipv6(egress)
    return Wanted(
        names=names,
        addresses=addresses(names, slot),
        egress=egress,
        mtu=around.mtu,
        resolver=around.resolver(ipv6),
        host_addresses=around.addresses,
        ipv6=ipv6,
        host_ipv6=around.ipv6,
    )


def reading(
    item: str,
    wrong: str,
    *,
    want: str = AS_WANTED,
    source: str = "netlink, /proc/sys/net",
    mend: Mend = "in place",
) -> Reading:
    """One of the network's; `wrong` says how it differs from `want`, empty when it does not."""
    got = wrong or want
    return Reading("network", item, want, got, not wrong, source, "live", mend)


def shown(
    wanted: Wanted, dropped: Mapping[str, int], problem: str, own_way: Mapping[str, str]
) -> dict[str, str]:
    """Facts by name; `dropped` counts packets by reason, `own_way` depends on who runs box."""
    own = wanted.addresses
    no_dns = "none" if wanted.egress.mode == "all" else "none: only with egress: all"
    six = str(own.guest6) if wanted.ipv6 else f"{own.guest6} (no route: the host has none)"
    common = {
        "address4": str(own.guest4),
        "address6": six,
        "gateway4": str(own.gateway4),
        "gateway6": str(own.gateway6),
        "egress": str(wanted.egress),
        "mtu": str(wanted.mtu),
        "resolver": f"{wanted.resolver}, asked through {wanted.dns}" if wanted.dns else no_dns,
        "dropped": ", ".join(f"{name} {n}" for name, n in sorted(dropped.items()) if n) or "0",
    }
    return common | dict(own_way) | ({"problem": problem} if problem else {})
