"""Addresses are worked out, never handed out: the same sandbox gets the same ones."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers.network.addresses import POOL, SLOTS, addresses, first_slot, mac, slot_of
from specs.names import HostNames
from tests.unit.specs.strategies import names

INSTANCE = "0123456789ab"
SLOT = st.integers(0, SLOTS - 1)


@given(name=names, slot=SLOT)
def test_a_slot_holds_both_links_and_nothing_of_another(name: str, slot: int) -> None:
    own = addresses(HostNames(INSTANCE, name), slot)
    four = (own.gateway4, own.guest4, own.host4, own.middle4)
    assert len(set(four)) == 4
    assert all(address in own.block and slot_of(address) == slot for address in four)
    assert own.block.subnet_of(POOL) and own.block.num_addresses == 8
    assert own.gateway4 in own.guest_link4 and own.guest4 in own.guest_link4
    assert own.host4 in own.uplink4 and own.middle4 in own.uplink4
    assert not own.guest_link4.overlaps(own.uplink4)
    for address in four:  # usable: neither network nor broadcast address of its link
        link = own.guest_link4 if address in own.guest_link4 else own.uplink4
        assert address in list(link.hosts())


@given(one=names, other=names)
def test_ipv6_is_unique_local_and_different_for_each_sandbox(one: str, other: str) -> None:
    first = addresses(HostNames(INSTANCE, one), 0)
    second = addresses(HostNames(INSTANCE, other), 0)
    local = ipaddress.ip_network("fd00::/8")
    six = (first.gateway6, first.guest6, first.host6, first.middle6)
    assert len(set(six)) == 4 and all(address in local for address in six)
    assert (first.guest_link6 == second.guest_link6) == (one == other)
    assert not first.guest_link6.overlaps(first.uplink6)


@given(name=names)
def test_names_decide_where_to_look_and_the_mac(name: str) -> None:
    own = HostNames(INSTANCE, name)
    assert 0 <= first_slot(own) < SLOTS
    assert first_slot(own) == first_slot(HostNames(INSTANCE, name))
    first_byte = int(mac(own, "guest").split(":")[0], 16)
    assert first_byte & 1 == 0 and first_byte & 2  # unicast, locally administered
    assert mac(own, "guest") != mac(own, "gateway")


@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_no_slot_lies_outside_the_pool(slot: int) -> None:
    with pytest.raises(IndexError):
        addresses(HostNames(INSTANCE, "a"), slot)


def test_an_address_of_somebody_else_is_in_no_slot() -> None:
    assert slot_of(ipaddress.IPv4Address("198.20.0.1")) is None
