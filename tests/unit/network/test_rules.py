"""The rules as data, judged by a reader of nft's language that is not the one that wrote it.

`verdict` walks a packet through the chains of a table as nftables would. It knows only the
expressions that occur.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers.network import nftjson, rules
from reconcilers.network.addresses import addresses
from reconcilers.network.wanted import MARK, Wanted
from specs.egress import Address, egress_of
from specs.names import INTERFACE_PREFIX, HostNames

NAMES = HostNames("0123456789ab", "agent")
OWN = addresses(NAMES, 7)
HOST = frozenset(map(ipaddress.ip_address, ("192.0.2.5", "2001:db8::5", "10.1.1.1")))
RESOLVER = ipaddress.ip_address("10.0.0.53")


def wanted(egress: str | list[str], resolver: Address | None = RESOLVER) -> Wanted:
    return Wanted(NAMES, OWN, egress_of(egress), 1500, resolver, HOST, True, True)


@dataclass(frozen=True)
class Packet:
    """`to` and `source` are addresses; `kind` is tcp, udp, icmp or an ICMPv6 type."""

    to: str
    port: int = 443
    kind: str = "tcp"
    source: str = ""
    mac: str = ""
    established: bool = False
    over: int = 0  # how many connections the guest has
    mark: int = 0

    @property
    def version(self) -> int:
        return ipaddress.ip_address(self.to).version


def verdict(
    table: nftjson.Table, chain: str, packet: Packet, iifname: str, oifname: str = ""
) -> tuple[str, int, list[str]]:
    """(accept or drop, the mark afterwards, counters that counted)."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    policy = {}
    for command in table.commands():
        what = command.get("add", {})
        if "rule" in what:
            found.setdefault(what["rule"]["chain"], []).append(what["rule"]["expr"])
        elif "chain" in what:
            policy[what["chain"]["name"]] = what["chain"].get("policy", "return")
    state = {"mark": packet.mark}
    counted: list[str] = []

    def walk(name: str) -> str:
        for rule in found.get(name, []):
            for expression in rule:
                [(kind, value)] = expression.items()
                if kind == "match":
                    if not matches(value):
                        break
                elif kind == "ct count":
                    if packet.over <= value["val"]:
                        break
                elif kind == "counter":
                    counted.append(value)
                elif kind == "mangle" and value["key"] == {"meta": {"key": "mark"}}:
                    state["mark"] = value["value"]
                elif kind == "jump" and (ended := walk(value["target"])) != "return":
                    return ended
                elif kind in ("accept", "drop"):
                    return str(kind)
        return str(policy[name])

    def matches(value: dict[str, Any]) -> bool:
        left, right = value["left"], value["right"]
        seen = read(left, right)
        if seen is None:
            return False
        equal = seen in right if isinstance(right, list) else belongs(seen, right)
        return not equal if value["op"] == "!=" else equal

    def read(left: dict[str, Any], right: object) -> object:
        [(kind, value)] = left.items()
        if kind == "meta":
            return {
                "iifname": iifname,
                "oifname": oifname,
                "mark": state["mark"],
                "nfproto": f"ipv{packet.version}",
                "l4proto": packet.kind,
            }[value["key"]]
        if kind == "ct":
            return "established" if packet.established else "new"
        if kind == "fib":
            return "local" if ipaddress.ip_address(packet.to) in HOST else "unicast"
        protocol, field = value["protocol"], value["field"]
        if protocol == "ether":
            return packet.mac
        if protocol in ("ip", "ip6"):
            if protocol != ("ip" if packet.version == 4 else "ip6"):
                return None
            return packet.to if field == "daddr" else packet.source
        if protocol == "th":
            return packet.port if packet.kind in ("tcp", "udp") else None
        if protocol in ("icmp", "icmpv6"):
            ours = packet.version == (4 if protocol == "icmp" else 6)
            return packet.kind if ours else None
        return None

    return walk(chain), state["mark"], counted


def belongs(seen: object, right: object) -> bool:
    if isinstance(right, dict) and "set" in right:
        return any(belongs(seen, each) for each in right["set"])
    if isinstance(right, dict) and "prefix" in right:
        network = ipaddress.ip_network(f"{right['prefix']['addr']}/{right['prefix']['len']}")
        return ipaddress.ip_address(str(seen)) in network
    if isinstance(right, str) and right.endswith("*"):
        return str(seen).startswith(right[:-1])
    return seen == right


def sent(want: Wanted, to: str, port: int = 443, **more: Any) -> tuple[str, int, list[str]]:
    """What the middle's rules say of a packet from the guest."""
    version = ipaddress.ip_address(to).version
    source = str(OWN.guest4 if version == 4 else OWN.guest6)
    packet = Packet(to, port, **{"source": source, "mac": want.guest_mac, **more})
    return verdict(rules.middle_table(want), "classify", packet, want.guest_side)


def passes(want: Wanted, to: str, port: int = 443, **more: Any) -> bool:
    what, mark, _ = sent(want, to, port, **more)
    # Only a marked packet finds a route.
    return what == "accept" and mark == MARK


DENIED = (
    "0.0.0.0", "10.2.3.4", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1",
    "192.168.1.1", "198.18.0.2", "224.0.0.1", "255.255.255.255", "::", "::1",
    "::ffff:192.0.2.1", "64:ff9b::a00:1", "fd00::1", "fe80::1", "ff02::1", "192.0.2.5",
    "2001:db8::5",
)  # fmt: skip
PUBLIC = ("203.0.113.10", "8.8.8.8", "2001:db8:1::1", "2a00::1")


@pytest.mark.parametrize("to", DENIED)
@pytest.mark.parametrize("kind", ["tcp", "udp", "echo-request"])
def test_egress_all_does_not_reach_what_is_denied(to: str, kind: str) -> None:
    what, mark, counted = sent(wanted("all"), to, kind=kind)
    assert what == "drop" and mark == 0 and counted


@pytest.mark.parametrize("to", PUBLIC)
@pytest.mark.parametrize("kind", ["tcp", "udp", "echo-request"])
def test_egress_all_reaches_everything_else(to: str, kind: str) -> None:
    assert passes(wanted("all"), to, kind=kind)


@pytest.mark.parametrize("to", [*DENIED, *PUBLIC, str(OWN.gateway4), str(OWN.gateway6)])
@pytest.mark.parametrize("kind", ["tcp", "udp", "echo-request"])
@pytest.mark.parametrize("port", [53, 443])
def test_egress_none_lets_nothing_pass(to: str, kind: str, port: int) -> None:
    assert not passes(wanted("none"), to, port, kind=kind)
    assert not passes(wanted([]), to, port, kind="tcp")


@given(st.ip_addresses(), st.integers(1, 65535), st.sampled_from(["tcp", "udp", "icmp", "sctp"]))
def test_a_list_lets_through_what_it_names_and_nothing_else(
    to: Address, port: int, kind: str
) -> None:
    listed = ["203.0.113.10:443", "[2001:db8:1::/48]:53", "10.9.0.0/16:80"]
    want = wanted(listed)
    right = any(
        to.version == each.network.version and to in each.network and port == each.port
        for each in want.egress.entries
    )
    own = to in (OWN.gateway4, OWN.gateway6)
    assert passes(want, str(to), port, kind=kind) == (right and kind in ("tcp", "udp")) or own


@pytest.mark.parametrize(
    ("entry", "to", "port", "reached"),
    [
        ("10.0.0.0/8:80", "10.2.3.4", 80, True),
        ("10.0.0.0/8:80", "10.2.3.4", 81, False),
        ("10.0.0.0/8:80", "10.1.1.1", 80, False),  # the host's own: a range never opens it
        ("10.1.1.1:80", "10.1.1.1", 80, True),
        ("192.0.2.5:443", "192.0.2.5", 443, True),
        ("192.0.2.0/24:443", "192.0.2.5", 443, False),
        ("192.0.2.0/24:443", "192.0.2.6", 443, True),
        ("0.0.0.0/0:443", "203.0.113.1", 443, True),
        ("0.0.0.0/0:443", "169.254.169.254", 443, False),  # wide, so nothing denied is opened
        ("0.0.0.0/0:443", "10.2.3.4", 443, False),
        ("169.254.169.254:80", "169.254.169.254", 80, True),
        ("[::/0]:443", "2a00::1", 443, True),
        ("[::/0]:443", "fd00::1", 443, False),
        ("[::/0]:443", "203.0.113.1", 443, False),
        ("[fd12::/16]:443", "fd12::1", 443, True),
    ],
)
def test_only_an_entry_of_its_own_opens_what_is_denied(
    entry: str, to: str, port: int, reached: bool
) -> None:
    assert passes(wanted([entry]), to, port) is reached


def test_the_dns_address_serves_port_53_and_only_with_egress_all() -> None:
    gateway = str(OWN.gateway4)
    for kind in ("tcp", "udp"):
        assert passes(wanted("all"), gateway, 53, kind=kind)
        assert not passes(wanted("all"), gateway, 54, kind=kind)
        assert not passes(wanted(["203.0.113.1:53"]), gateway, 53, kind=kind)
        assert not passes(wanted("all", resolver=None), gateway, 53, kind=kind)
        assert not passes(wanted("all"), str(RESOLVER), 53, kind=kind)  # not around the gateway


@pytest.mark.parametrize(
    "forged",
    [
        {"source": "203.0.113.99"},
        {"source": "192.0.2.5"},
        {"mac": "02:00:00:00:00:99"},
        {"to": "2a00::1", "source": "fe80::1"},
        {"to": "2a00::1", "source": "2001:db8::99"},
    ],
)
def test_a_forged_source_does_not_pass(forged: dict[str, str]) -> None:
    more: dict[str, Any] = dict(forged)
    what, mark, counted = sent(wanted("all"), more.pop("to", "8.8.8.8"), **more)
    assert (what, mark, counted) == ("drop", 0, ["spoofed"])


def test_a_router_advertisement_from_the_guest_is_dropped_and_counted() -> None:
    more: dict[str, Any] = {"source": "fe80::2", "kind": "nd-router-advert"}
    assert sent(wanted("all"), "ff02::1", **more)[0::2] == ("drop", ["spoofed"])


def test_only_answers_come_back() -> None:
    want = wanted("all")
    table = rules.middle_table(want)
    packet = Packet(str(OWN.guest4), source="203.0.113.10")
    assert verdict(table, "classify", packet, want.uplink)[0] == "drop"
    answer = Packet(str(OWN.guest4), source="203.0.113.10", established=True)
    assert verdict(table, "classify", answer, want.uplink)[:2] == ("accept", MARK)


def test_nothing_is_forwarded_without_the_mark() -> None:
    want = wanted("all")
    packet = Packet("203.0.113.10", source=str(OWN.guest4))
    through = (want.guest_side, want.uplink)
    assert verdict(rules.middle_table(want), "pass", packet, *through)[0] == "drop"
    assert verdict(rules.host_table(want), "pass", packet, want.host_side, "eth0")[0] == "drop"


@pytest.mark.parametrize("kind", ["tcp", "udp", "echo-request"])
def test_the_host_itself_answers_nothing_that_is_not_listed(kind: str) -> None:
    want = wanted("all")
    for to in ("192.0.2.5", "10.1.1.1"):
        packet = Packet(to, 22, kind, source=str(OWN.guest4))
        assert verdict(rules.host_table(want), "classify", packet, want.host_side)[0] == "drop"
        assert verdict(rules.host_table(want), "answer", packet, want.host_side)[0] == "drop"


def test_a_listed_address_of_the_host_is_let_in_at_its_port_only() -> None:
    want = wanted(["192.0.2.5:8080"])
    for port, expected in ((8080, "accept"), (22, "drop")):
        packet = Packet("192.0.2.5", port, source=str(OWN.guest4))
        assert verdict(rules.host_table(want), "classify", packet, want.host_side)[0] == expected


def test_another_sandbox_is_never_reached_even_when_listed() -> None:
    want = wanted(["198.18.0.10:80"])
    packet = Packet("198.18.0.10", 80, source=str(OWN.guest4), mark=MARK)
    other = HostNames("ba9876543210", "other").interface("h")
    assert other.startswith(f"{INTERFACE_PREFIX}h")
    what, _, counted = verdict(rules.host_table(want), "pass", packet, want.host_side, other)
    assert (what, counted) == ("drop", ["sandbox"])


def test_traffic_of_the_host_that_is_not_ours_is_left_alone() -> None:
    want = wanted("all")
    packet = Packet("203.0.113.10", source="192.168.1.7")
    for chain in ("classify", "answer", "pass"):
        found = verdict(rules.host_table(want), chain, packet, "eth0", "eth1")
        assert found == ("accept", 0, [])


def test_order_of_a_set_and_joined_neighbours_make_no_difference() -> None:
    def rule(values: list[object]) -> list[dict[str, Any]]:
        match = nftjson.match(nftjson.field("ip", "daddr"), {"set": values})
        return [{"rule": {"chain": "x", "expr": [match], "handle": 7}}]

    split = rule(["1.2.3.4", "1.2.3.5", {"prefix": {"addr": "10.0.0.0", "len": 8}}])
    joined = rule([{"prefix": {"addr": "10.0.0.0", "len": 8}}, {"range": ["1.2.3.4", "1.2.3.5"]}])
    assert nftjson.canonical(split) == nftjson.canonical(joined)
    assert nftjson.canonical(split) != nftjson.canonical(rule(["1.2.3.4"]))
