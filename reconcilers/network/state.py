"""Links, addresses, routes and settings of a sandbox's network as text, wanted beside found.

Pure. Each fact is one line, so that what is missing and what is too much can be named as it is. It
must not know how a fact is read or made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from reconcilers.network.wanted import MARK, Wanted

# a routing table inside the middle namespace, which is ours alone
MARKED_TABLE = 100
# `ip rule` priorities on the host: before the host's own rules, which begin at 5,000 where there
# are any, and behind its table of local addresses (0). The last is where marked packets go on.
ALLOW_PRIORITY, REFUSE_PRIORITY, GO_ON_PRIORITY = 97, 98, 99
MIDDLE_PRIORITY = 100

LINKS, ADDRESSES, ROUTES, RULES, SETTINGS = (
    "links",
    "addresses",
    "routes",
    "policy routing",
    "settings",
)
ITEMS = (LINKS, ADDRESSES, ROUTES, RULES, SETTINGS)

# sysctl below /proc/sys/net -> value, in the VMM's namespace: it never speaks IP at all
VMM_SETTINGS = {"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"}


def middle_settings(wanted: Wanted) -> dict[str, str]:
    """Settings of the middle namespace: it forwards, and believes nothing that a guest says."""
    settings = {
        "ipv4/ip_forward": "1",
        # Answers and errors of its own take the way of the packet that caused them.
        "ipv4/fwmark_reflect": "1",
        "ipv6/fwmark_reflect": "1",
        "ipv6/conf/all/forwarding": "1",
        # Sources are judged by the rules; a route exists for marked packets only.
        "ipv4/conf/all/rp_filter": "0",
    }
    for device in (wanted.guest_side, wanted.uplink):
        settings |= {
            f"ipv4/conf/{device}/rp_filter": "0",
            f"ipv4/conf/{device}/accept_redirects": "0",
            f"ipv4/conf/{device}/send_redirects": "0",
            f"ipv4/conf/{device}/accept_source_route": "0",
            # For the guest's side: no answer to, and no memory of, who is not on that link. There
            # are 1,024 neighbours for all namespaces of the host together (gc_thresh3, arp(7)).
            f"ipv4/conf/{device}/arp_ignore": "2" if device == wanted.guest_side else "1",
            f"ipv6/conf/{device}/accept_ra": "0",
            f"ipv6/conf/{device}/accept_redirects": "0",
        }
    return settings


def host_settings(wanted: Wanted) -> dict[str, str]:
    """Settings of the host's end of the link; the host's own are never touched."""
    device = wanted.host_side
    settings = {
        f"ipv4/conf/{device}/accept_redirects": "0",
        f"ipv4/conf/{device}/send_redirects": "0",
        f"ipv4/conf/{device}/accept_source_route": "0",
    }
    if wanted.host_ipv6:
        settings |= {
            f"ipv6/conf/{device}/accept_ra": "0",
            f"ipv6/conf/{device}/accept_redirects": "0",
        }
    return settings


@dataclass(frozen=True, slots=True)
class State:
    """Lines by item. `tap` is told apart: only a VMM has one."""

    lines: dict[str, frozenset[str]]
    tap: frozenset[str]


@lru_cache(maxsize=1024)
def wanted_state(wanted: Wanted) -> State:
    """Every line that must be there, and no others of the same kind."""
    own, mtu = wanted.addresses, wanted.mtu
    return State(
        {
            LINKS: frozenset(
                (
                    link("vmm", wanted.bridge, "bridge", mtu),
                    link("vmm", wanted.inner, "veth", mtu, master=wanted.bridge),
                    link("middle", wanted.guest_side, "veth", mtu, peer=wanted.inner),
                    link("middle", wanted.uplink, "veth", mtu),
                    link("host", wanted.host_side, "veth", mtu, peer=wanted.uplink),
                )
            ),
            ADDRESSES: frozenset(
                (
                    address("middle", wanted.guest_side, f"{own.gateway4}/30"),
                    address("middle", wanted.guest_side, f"{own.gateway6}/112"),
                    address("middle", wanted.uplink, f"{own.middle4}/30"),
                    address("host", wanted.host_side, f"{own.host4}/30"),
                    *_if(wanted, address("middle", wanted.uplink, f"{own.middle6}/112")),
                    *_if(wanted, address("host", wanted.host_side, f"{own.host6}/112")),
                )
            ),
            ROUTES: frozenset(
                (
                    route("middle", str(own.guest_link4), wanted.guest_side),
                    route("middle", str(own.guest_link6), wanted.guest_side),
                    route("middle", str(own.uplink4), wanted.uplink),
                    route("middle", "0.0.0.0/0", wanted.uplink, via=str(own.host4)),
                    route("host", str(own.uplink4), wanted.host_side),
                    route("host", str(own.guest_link4), wanted.host_side, via=str(own.middle4)),
                    *_if(wanted, route("middle", str(own.uplink6), wanted.uplink)),
                    *_if(wanted, route("middle", "::/0", wanted.uplink, via=str(own.host6))),
                    *_if(wanted, route("host", str(own.uplink6), wanted.host_side)),
                    *_if(
                        wanted,
                        route("host", str(own.guest_link6), wanted.host_side, str(own.middle6)),
                    ),
                )
            ),
            RULES: frozenset(_rules(wanted)),
            SETTINGS: frozenset(
                setting(space, name, value)
                for space, settings in (
                    ("vmm", VMM_SETTINGS),
                    ("middle", middle_settings(wanted)),
                    ("host", host_settings(wanted)),
                )
                for name, value in settings.items()
            ),
        },
        frozenset((link("vmm", wanted.tap, "tun", mtu, master=wanted.bridge),)),
    )


def _if(wanted: Wanted, line: str) -> tuple[str, ...]:
    return (line,) if wanted.ipv6 else ()


def _rules(wanted: Wanted) -> list[str]:
    device = wanted.host_side
    found = [rule("middle", each, MIDDLE_PRIORITY, "", MARK, f"lookup {MARKED_TABLE}")
             for each in (4, 6)]  # fmt: skip
    for each in (4, 6) if wanted.host_ipv6 else (4,):
        found += [
            rule("host", each, ALLOW_PRIORITY, device, MARK, f"goto {GO_ON_PRIORITY}"),
            rule("host", each, REFUSE_PRIORITY, device, 0, "blackhole"),
            rule("host", each, GO_ON_PRIORITY, device, 0, "nop"),
        ]
    return found


def link(
    space: str,
    name: str,
    kind: str,
    mtu: int,
    *,
    master: str = "",
    peer: str = "",
    up: bool = True,
    learns: bool = False,
) -> str:
    on = f" on {master}" if master else ""
    to = f" to {peer}" if peer else ""
    more = " that learns" if learns else ""
    return f"{space}: {name} {kind}{on}{to} mtu {mtu} {'up' if up else 'down'}{more}"


def address(space: str, device: str, text: str) -> str:
    return f"{space}: {text} on {device}"


def route(space: str, to: str, device: str, via: str = "") -> str:
    hop = f" via {via}" if via else ""
    return f"{space}: {to}{hop} on {device}"


def rule(space: str, version: int, priority: int, device: str, mark: int, action: str) -> str:
    source = f" from {device}" if device else ""
    marked = f" marked {mark:#x}" if mark else ""
    return f"{space}: IPv{version} {priority}{source}{marked} {action}"


def setting(space: str, name: str, value: str) -> str:
    return f"{space}: {name} = {value}"


def difference(wanted: Iterable[str], found: Iterable[str]) -> str:
    """What lacks and what is too much, in words; empty when they agree."""
    want, have = set(wanted), set(found)
    parts = [f"no {line}" for line in sorted(want - have)]
    parts += [f"there is {line}" for line in sorted(have - want)]
    more = len(parts) - 3
    return "; ".join(parts[:3]) + (f"; and {more} more" if more > 0 else "")
