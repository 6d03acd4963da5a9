"""Names of a sandbox on the host (shared case L3)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import BadName, HostError
from specs.names import (
    INTERFACE_MAX,
    NAME_PATTERN,
    SOCKET_PATH_MAX,
    HostNames,
    check_name,
    check_socket_path,
    is_interface_of,
    parse_marker,
)
from tests.unit.specs.strategies import names

INSTANCE = "0123456789ab"
OTHER = "ba9876543210"


@given(text=st.one_of(st.text(max_size=70), names, st.text("ab-.\n/", max_size=70)))
def test_check_name_agrees_with_the_documented_pattern(text: str) -> None:
    if re.fullmatch(NAME_PATTERN, text):
        assert check_name(text) == text
    else:
        with pytest.raises(BadName):
            check_name(text)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\n", "A", "-a", "a-", "a" * 64, "\u00e9"])
def test_names_that_could_touch_a_path_are_refused(name: str) -> None:
    with pytest.raises(BadName) as caught:
        check_name(name)
    assert caught.value.code == "bad_name"
    assert caught.value.exit_status == 2


@given(one=names, other=names, kind=st.sampled_from(["t", "v", "m", "b"]))
def test_interfaces_fit_and_are_distinct_for_distinct_sandboxes(
    one: str, other: str, kind: str
) -> None:
    first, second = HostNames(INSTANCE, one), HostNames(INSTANCE, other)
    assert len(first.interface(kind).encode()) <= INTERFACE_MAX
    assert (first.interface(kind) == second.interface(kind)) == (one == other)
    assert first.interface(kind) != HostNames(OTHER, one).interface(kind)
    assert first.interface("t") != first.interface("v")
    assert is_interface_of(first.interface(kind), INSTANCE)
    assert not is_interface_of(first.interface(kind), OTHER)


def test_long_names_with_a_common_beginning_do_not_collide() -> None:
    one = HostNames(INSTANCE, "warehouse-alpha-1")
    two = HostNames(INSTANCE, "warehouse-alpha-2")
    for attribute in ("cgroup", "marker"):
        assert getattr(one, attribute) != getattr(two, attribute)
    assert one.interface("t") != two.interface("t")


@given(name=names)
def test_marker_is_recognised_and_gives_the_names_back(name: str) -> None:
    assert parse_marker(HostNames(INSTANCE, name).marker) == HostNames(INSTANCE, name)


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "box",
        "box:x",
        f"box:{INSTANCE}:",
        f"box:{INSTANCE}:../x",
        f"box:{INSTANCE}:a:b",
        f"box:{INSTANCE.upper()}:a",
        "box:0123:a",
        f"tux:{INSTANCE}:a",
        f" box:{INSTANCE}:a",
    ],
)
def test_what_is_not_our_marker_is_not_recognised(argument: str) -> None:
    assert parse_marker(argument) is None


@pytest.mark.parametrize("instance", ["", "0123456789AB", "0123456789abc", "../../../../x"])
def test_instance_that_is_not_one_is_refused(instance: str) -> None:
    with pytest.raises(BadName):
        HostNames(instance, "fern")


def test_socket_path_is_measured_in_bytes() -> None:
    assert check_socket_path("/" + "x" * (SOCKET_PATH_MAX - 1))
    with pytest.raises(HostError):
        check_socket_path("/" + "x" * SOCKET_PATH_MAX)
    with pytest.raises(HostError):
        check_socket_path("/" + "\u00e9" * (SOCKET_PATH_MAX // 2 + 1))


def test_host_names_cannot_be_changed() -> None:
    name = HostNames(INSTANCE, "fern")
    with pytest.raises(AttributeError):
        name.sandbox = "moss"
    assert hash(name) == hash(HostNames(INSTANCE, "fern"))
