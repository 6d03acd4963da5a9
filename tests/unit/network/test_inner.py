"""An ordinary user's network as values: what differs from root's, and what must not."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from reconcilers import pasta
from reconcilers.confinement.rootview import RootFile
from reconcilers.confinement.seccomp import read_profile, rules_for
from reconcilers.network import inner, rules, state
from reconcilers.network.addresses import addresses, first_slot
from reconcilers.network.wanted import Wanted
from specs.egress import egress_of
from specs.names import HostNames

NAMES = HostNames("0123456789ab", "elm")


def wanted(egress: str | list[str] = "all") -> Wanted:
    return Wanted(
        names=NAMES,
        addresses=addresses(NAMES, first_slot(NAMES)),
        egress=egress_of(egress),
        mtu=1400,
        resolver=ip_address("198.51.100.53"),
        host_addresses=frozenset((ip_network("203.0.113.1/32"), ip_network("198.51.98.0/24"))),
        ipv6=True,
        host_ipv6=True,
    )


@pytest.mark.parametrize(
    "egress", ["all", "none", ["192.0.2.1:443", "10.0.0.0/8:53", "[2001:db8::/32]:443"]]
)
def test_it_survives_the_way_to_the_worker(egress: str | list[str]) -> None:
    one = wanted(egress)
    assert inner.from_text(inner.to_text(one)) == one
    without = replace(one, resolver=None)
    assert inner.from_text(inner.to_text(without)) == without


def test_nothing_of_it_is_on_the_host_and_the_uplink_is_a_tap() -> None:
    root, user = state.wanted_state(wanted()), inner.wanted_state(wanted())
    gone = {line for item in state.ITEMS for line in root.lines[item] - user.lines[item]}
    new = {line for item in state.ITEMS for line in user.lines[item] - root.lines[item]}
    [tap] = new
    assert tap == f"middle: {NAMES.interface('u')} tun mtu 1400 up"
    assert {line for line in gone if not line.startswith("host: ")} == {tap.replace("tun", "veth")}
    assert user.tap == root.tap


def test_every_rule_of_roots_is_there_and_only_masking_comes_on_top() -> None:
    root = rules.middle_table(wanted()).commands()
    user = inner.table(wanted()).commands()
    assert user[: len(root)] == root
    assert {
        each["add"].get("rule", each["add"].get("chain")).get("chain", "translate")
        for each in user[len(root) :]
    } == {"translate"}


def test_ranges_the_host_takes_for_its_own_are_refused() -> None:
    text = inner.table(wanted()).to_json().decode()
    assert '{"addr": "198.51.98.0", "len": 24}' in text
    assert text.index('"198.51.98.0"') < text.rindex('"private"')


def test_pasta_forwards_nothing_and_maps_nothing_to_the_hosts_loopback() -> None:
    found = pasta.command(wanted(), "eth0", "02:00:00:00:00:01")
    for option in ("--tcp-ports", "--udp-ports", "--tcp-ns", "--udp-ns", "--dns"):
        assert found[found.index(option) + 1] == "none"
    assert {"--no-map-gw", "--no-dhcp", "--no-dhcpv6", "--no-ra", "--foreground"} <= set(found)
    assert "--config-net" not in found
    alone = pasta.command(replace(wanted(), host_ipv6=False, ipv6=False), "lo", "02::")
    assert "--ipv4-only" in alone and "--ipv4-only" not in found


def test_its_binary_has_the_name_that_makes_it_pasta() -> None:
    files = (RootFile("/usr/bin/passt", "/usr/bin/passt", True), RootFile("/l", "/l", True))
    assert pasta.named(files) == (RootFile("/usr/bin/passt", pasta.INSIDE, True), files[1])


@pytest.mark.parametrize("call", ["setns", "unshare", "mount", "pivot_root", "umount2"])
def test_pasta_cannot_leave_its_place(call: str) -> None:
    """It is told that it was done; the call is never made."""
    found = [
        rule for rule in rules_for(read_profile("passt"), kvm=False) if rule["syscall"] == call
    ]
    assert [rule["answer"] for rule in found] == ["0"]


def test_pasta_gets_no_other_sockets() -> None:
    found = [rule for rule in rules_for(read_profile("passt"), kvm=False)
             if rule["syscall"] == "socket" and "answer" not in rule]  # fmt: skip
    assert sorted(rule["args"][0]["equals"] for rule in found) == ["0x10", "0x2", "0xa"]
