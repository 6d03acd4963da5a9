"""Entries of `egress`: what is understood, and what is refused with a correction."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.egress import Entry, egress_of, parse_entry
from specs.errors import NotAllowed

FOUR = st.builds(
    lambda address, prefix: ipaddress.ip_network((address, prefix), strict=False),
    st.integers(0x01000000, 0x7EFFFFFF),
    st.integers(8, 32),
)
SIX = st.builds(
    lambda address, prefix: ipaddress.ip_network((address, prefix), strict=False),
    st.integers(0x2001 << 112, (0x3FFF << 112) - 1),
    st.integers(16, 128),
)


@given(network=st.one_of(FOUR, SIX), port=st.integers(1, 65535))
def test_every_entry_is_read_back_from_how_it_is_shown(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network, port: int
) -> None:
    entry = Entry(network, port)
    assert parse_entry(str(entry)) == entry


@given(text=st.one_of(st.text(max_size=60), st.text("0123456789abcdef:./[]%-", max_size=40)))
def test_any_text_is_an_entry_or_a_value_error(text: str) -> None:
    try:
        entry = parse_entry(text)
    except ValueError as error:
        assert str(error)
    else:
        assert 1 <= entry.port <= 65535
        assert parse_entry(str(entry)) == entry


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("192.0.2.1", "write 192.0.2.1:443"),
        ("2001:db8::1", "write [2001:db8::1]:443"),
        ("[2001:db8::1]", "write [2001:db8::1]:443"),
        ("2001:db8::1:443", "write [2001:db8::1]:443 for port 443"),
        ("2001:db8::1:x:443", "stands in brackets"),
        ("[192.0.2.1]:443", "write 192.0.2.1:443"),
        ("example.com:443", "names are not supported yet"),
        ("10.0.0.1/8:443", "write 10.0.0.0/8 for the range or 10.0.0.1 for the one address"),
        ("192.0.2.1:0", "not a port from 1 to 65535"),
        ("192.0.2.1:65536", "not a port from 1 to 65535"),
        ("192.0.2.1:80-90", "a range is not supported"),
        ("192.0.2.1:https", "not a port"),
        ("192.0.2.1:", "nothing is not a port"),
        ("127.0.0.1:80", "is the guest itself"),
        ("[::1]:80", "is the guest itself"),
        ("0.0.0.0:80", "stands for no address"),
        ("224.0.0.1:80", "multicast"),
        ("255.255.255.255:80", "broadcast"),
        ("[::ffff:10.0.0.1]:80", "write it as IPv4"),
        ("[fe80::1]:80", "link-local"),
        ("[fe80::1%eth0]:80", "is not an address"),
        (":443", "nothing is not an address"),
        ("", "is not IP:port"),
        ("192.0.2.256:80", "is not an address"),
    ],
)
def test_mistake_is_named_with_its_correction(text: str, says: str) -> None:
    with pytest.raises(NotAllowed) as caught:
        parse_entry(text)
    assert says in f"{caught.value}; {caught.value.fix}"


def test_words_and_lists_are_told_apart() -> None:
    assert egress_of("none").mode == "none"
    assert egress_of("all").mode == "all"
    listed = egress_of(["203.0.113.10:443", "[2001:db8::/32]:53"])
    assert listed.mode == "list"
    assert [each.single for each in listed.entries] == [True, False]
    assert egress_of([]).mode == "none"
    with pytest.raises(ValueError):
        egress_of("everything")
