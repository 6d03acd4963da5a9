"""What stands against a bridged sandbox on a host, and which nameservers are of use."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest

from reconcilers.network.surroundings import Surroundings, nameservers
from specs.egress import egress_of

GOOD = Surroundings(
    mtu=1500,
    addresses=frozenset((ip_address("192.0.2.1"),)),
    forwards4=True,
    forwards6=True,
    ipv6=True,
    ipv6_route=True,
    resolvers=(),
)
SIX = ["[2001:db8::1]:443"]


@pytest.mark.parametrize(
    "around, egress, said",
    [
        (GOOD, "all", ""),
        (replace(GOOD, forwards4=False), "all", "net.ipv4.ip_forward"),
        (replace(GOOD, forwards6=False), "all", "net.ipv6.conf.all.forwarding"),
        (replace(GOOD, forwards6=False, ipv6_route=False), "all", ""),
        (replace(GOOD, forwards6=False, ipv6_route=False), SIX, "net.ipv6.conf.all.forwarding"),
        (replace(GOOD, ipv6=False, ipv6_route=False), SIX, "disable_ipv6"),
        (replace(GOOD, ipv6=False, ipv6_route=False), "all", ""),
        (replace(GOOD, ipv6=False, ipv6_route=False, ipv6_known=False), "all", "ipv6.disable=1"),
    ],
)
def test_what_the_host_does_not_do_is_named_with_its_fix(
    around: Surroundings, egress: str | list[str], said: str
) -> None:
    problem, fix = around.problem(egress_of(egress))
    assert bool(problem) == bool(said) and said in fix


def test_nameservers_that_only_the_host_itself_can_ask_do_not_count() -> None:
    text = "nameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver 0.0.0.0\n"
    assert nameservers(text) == ()
    more = (
        "options edns0\nnameserver 192.0.2.53 # ours\nnameserver nonsense\nnameserver 2001:db8::53"
    )
    assert nameservers(text + more) == (ip_address("192.0.2.53"), ip_address("2001:db8::53"))


def test_a_nameserver_behind_ipv6_needs_a_way_there() -> None:
    four, six = ip_address("192.0.2.53"), ip_address("2001:db8::53")
    around = replace(GOOD, resolvers=(six, four))
    assert around.resolver(ipv6=True) == six
    assert around.resolver(ipv6=False) == four
    assert replace(GOOD, resolvers=(six,)).resolver(ipv6=False) is None
