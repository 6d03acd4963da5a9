"""What a guest says of a merge: read again, or refused in our own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import merged
from agent.merged import Conflict, Merged
from specs.errors import ProtocolError
from specs.pathtext import path_field, path_of

LETTERS = st.sampled_from("AMDT")
PATHS = st.lists(
    st.binary(min_size=1, max_size=9)
    .map(lambda raw: raw.replace(b"\0", b"z").replace(b"/", b"y"))
    .filter(lambda raw: raw != b".."),
    min_size=1,
    max_size=4,
).map(b"/".join)
CONFLICTS = st.lists(st.builds(Conflict, LETTERS, LETTERS, PATHS), max_size=5)


def told(taken: int, total: int, conflicts: list[Conflict]) -> bytes:
    listed = (f"{each.fork}{each.parent}/".encode() + each.path + b"\0" for each in conflicts)
    return b"=%d %d\0" % (taken, total) + b"".join(listed)


@given(st.integers(0, 10**18 - 1), st.integers(0, 99), CONFLICTS)
def test_what_is_told_is_read(taken: int, more: int, conflicts: list[Conflict]) -> None:
    total = len(conflicts) + more
    found = merged.parse(told(taken, total, conflicts))
    assert found == Merged(taken, total, tuple(conflicts))
    for each in conflicts:
        assert path_of(path_field(each.path)) == each.path


@given(st.binary(max_size=60))
def test_anything_at_all_is_read_or_refused(raw: bytes) -> None:
    for made in (raw, b"=1 2\0" + raw, told(3, 1, [Conflict("A", "D", b"a")]) + raw):
        try:
            found = merged.parse(made)
        except ProtocolError:
            continue
        assert len(found.conflicts) <= found.total
        for each in found.conflicts:
            assert each.path and b"\0" not in each.path and b".." not in each.path.split(b"/")


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\0", b"=1 2", b"=1\0", b"=-1 0\0", b"=1 1\0AX/a\0", b"=1 1\0AD/\0", b"=1 1\0ADa\0",
        b"=1 1\0AD//a\0", b"=1 1\0AD/a/../b\0", b"=1 0\0AD/a\0", b"=1 1\0AD/a", b"=1 1\0\0",
        b"=1111111111111111111 0\0",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        merged.parse(raw)


def test_a_number_is_a_number() -> None:
    assert merged.count(b"12") == 12
    for wrong in (b"", b"-1", b"1 ", b"\xd9\xa1", b"1" * 19):
        with pytest.raises(ProtocolError):
            merged.count(wrong)


def test_a_path_that_is_no_utf8_cannot_be_taken_for_one_that_is() -> None:
    assert path_field(b"a\xff") == {"path_b64": "Yf8="}
    assert path_field("ä".encode()) == {"path": "ä"}
    for wrong in ({}, {"path": 7}, {"path_b64": "Yf8"}, {"path_b64": "?"}):
        with pytest.raises(ValueError):
            path_of(wrong)
