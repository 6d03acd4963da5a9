"""Routing messages: nothing that comes in can do more than be refused, and real ones are right."""

from __future__ import annotations

import socket
import struct
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers.network import rtmessages as rt
from reconcilers.network import spaces
from reconcilers.network.routing import Routing
from reconcilers.process import run

PARSERS = (rt.link, rt.address, rt.route, rt.rule)
words = st.binary(max_size=40)
SETTINGS = {
    "ipv4": (
        "accept_redirects",
        "send_redirects",
        "rp_filter",
        "accept_source_route",
        "arp_ignore",
    ),
    "ipv6": ("accept_ra", "accept_redirects"),
}  # fmt: skip


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for parse in PARSERS:
        try:
            parse(data)
        except OSError:
            assert len(data) < 16
    list(rt.messages(data))
    rt.error_of(data)
    for family, keys in SETTINGS.items():
        for key in keys:
            rt.Link(1, "one", 0, 1500, 0, 0, "", families=data).setting(family, key)


@given(st.lists(st.tuples(st.integers(1, 60), words), max_size=8), st.integers(0, 255))
def test_attributes_of_any_type_and_length_are_taken_as_they_come(
    pairs: list[tuple[int, bytes]], family: int
) -> None:
    packed = b"".join(attribute(kind, value) for kind, value in pairs)
    assert rt.attributes(packed) == dict(pairs)
    for parse, head in zip(PARSERS, (16, 8, 12, 12), strict=True):
        parse(bytes([family]) + bytes(head - 1) + packed)


@given(st.lists(words, max_size=5), st.binary(max_size=15))
def test_whole_messages_are_found_and_a_cut_off_one_is_left_out(
    bodies: list[bytes], rest: bytes
) -> None:
    data = b"".join(
        struct.pack("=IHHII", 16 + len(body), 20, 2, number, 0) + body + bytes(-len(body) % 4)
        for number, body in enumerate(bodies)
    )
    wanted = [(20, 2, number, body) for number, body in enumerate(bodies)]
    assert list(rt.messages(data + rest)) == wanted


SETUP = (
    "link add one type veth peer name two mtu 1400",
    "link add hub type bridge",
    "link set two master hub mtu 1400",
    "link set hub up",
    "link set two up",
    "link set one up",
    "addr add 192.0.2.1/24 dev one",
    "-6 addr add 2001:db8::1/64 dev one nodad",
    "route add 198.51.100.0/24 via 192.0.2.9 mtu 1300",
    "route add blackhole 203.0.113.0/24 table 77",
    "route add 10.1.0.0/16 nexthop via 192.0.2.2 dev one nexthop via 192.0.2.3 dev one",
    "-6 route add default via 2001:db8::9 metric 12",
    "rule add pref 97 iif one fwmark 0x2b0 goto 99",
    "rule add pref 99 iif one nop",
    "-6 rule add pref 100 fwmark 7/0xff lookup 1000",
)


@pytest.mark.needs_root
def test_the_kernels_own_messages_say_what_ip_was_told() -> None:
    def look() -> None:
        for line in SETUP:
            run(["ip", *line.split()])
        with Routing() as kernel:
            links = {each.name: each for each in kernel.links()}
            one, two, hub = (links[name] for name in ("one", "two", "hub"))
            assert (one.kind, one.up, one.peer) == ("veth", True, two.index)
            assert (two.mtu, two.master, hub.kind) == (1400, hub.index, "bridge")
            assert not links["lo"].up and kernel.link("none") is None
            own = {(each.text, each.prefix, each.scope) for each in kernel.addresses()
                   if each.device == one.index}  # fmt: skip
            assert {("192.0.2.1", 24, 0), ("2001:db8::1", 64, 0)} <= own
            routes = {each.to: each for each in kernel.routes(254)}
            far = routes["198.51.100.0/24"]
            assert (far.gateway, far.mtu, far.device) == ("192.0.2.9", 1300, one.index)
            assert routes["10.1.0.0/16"].hops == (one.index, one.index)
            six = routes["::/0"]
            assert (six.family, six.gateway, six.priority) == (socket.AF_INET6, "2001:db8::9", 12)
            assert "203.0.113.0/24" not in routes
            [lost] = kernel.routes(77)
            assert (lost.to, lost.kind, lost.device) == ("203.0.113.0/24", 6, 0)  # RTN_BLACKHOLE
            rules = {each.priority: each for each in kernel.rules()}
            assert (rules[97].device, rules[97].mark, rules[97].goto) == ("one", 0x2B0, 99)
            assert (rules[99].action, rules[99].device) == (3, "one")  # FR_ACT_NOP
            assert (rules[100].mark, rules[100].mask, rules[100].table) == (7, 0xFF, 1000)
            assert rules[100].family == socket.AF_INET6

    spaces.elsewhere(look)


@pytest.mark.needs_root
def test_a_long_listing_comes_in_several_pieces_and_is_whole() -> None:
    def look() -> None:
        run(["ip", "link", "set", "lo", "up"])
        batch = "".join(f"addr add 10.0.{n // 250}.{n % 250 + 1}/32 dev lo\n" for n in range(1500))
        run(["ip", "-batch", "-"], data=batch.encode())
        with Routing() as kernel:
            assert len([each for each in kernel.addresses() if each.text[:3] == "10."]) == 1500

    spaces.elsewhere(partial(look))


@pytest.mark.needs_root
def test_a_links_settings_are_what_proc_sys_shows() -> None:
    """Each is changed alone: two that lie side by side would be told apart by nothing else."""

    def shown(family: str, key: str) -> str | None:
        return spaces.read_sysctl(f"{family}/conf/one/{key}")

    def look() -> None:
        run(["ip", "link", "add", "one", "type", "veth", "peer", "name", "two"])
        every = [(family, key) for family, keys in SETTINGS.items() for key in keys]
        with Routing() as kernel:
            for family, key in every:
                other = "0" if shown(family, key) == "1" else "1"
                spaces.write_sysctl(f"{family}/conf/one/{key}", other)
                link = kernel.link("one")
                assert link is not None and link.setting(family, key) == other
                assert {each: link.setting(*each) for each in every} == {
                    each: shown(*each) for each in every
                }

    spaces.elsewhere(look)
