"""The archive's codec: what is written is read again, and nothing else is taken for an archive."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import archive
from agent.archive import BLOCK, HEADER, LONG, Kind, Record, Window, encode, records
from specs.errors import ProtocolError

SEED_EXAMPLES = 300


def window(data: bytes) -> Window:
    return Window(lambda at, size: data[at : at + size], len(data))


def read(data: bytes) -> list[Record]:
    return list(records(window(data)))


NAMES = st.binary(min_size=1, max_size=255).map(
    lambda raw: raw.translate(bytes(b if b not in b"/\0." else 0x78 for b in range(256)))
)
TIMES = st.integers(archive.SECONDS_MIN * archive.NANO, archive.SECONDS_MAX * archive.NANO)
IDS = st.integers(0, 2**32 - 1)
MODES = st.integers(0, 0o7777)
TARGETS = st.binary(min_size=1, max_size=300).map(lambda b: b.replace(b"\0", b"x"))
BODIES = st.lists(
    st.tuples(TARGETS.map(lambda b: b"user." + b[:9]), st.binary(max_size=90)), max_size=4
).map(archive.encode_attributes)
ENTRIES = st.one_of(
    st.tuples(NAMES, MODES, TIMES, IDS, IDS, BODIES).map(
        lambda v: Record(Kind.FOLDER, v[0], v[1], 0, v[2], v[3], v[4], body=v[5])
    ),
    st.tuples(NAMES, MODES, st.integers(0, 1 << 44), TIMES, IDS, BODIES).map(
        lambda v: Record(Kind.FILE, v[0], v[1], v[2], v[3], v[4], body=v[5])
    ),
    st.tuples(NAMES, TIMES, TARGETS).map(
        lambda v: Record(Kind.SYMLINK, v[0], mtime_ns=v[1], body=v[2])
    ),
    st.tuples(NAMES, st.integers(0, 9)).map(lambda v: Record(Kind.NOTE, v[0], number=v[1])),
)


@settings(max_examples=100)
@given(st.lists(ENTRIES, max_size=12), st.integers(0, 9), st.sampled_from([0, 1, 7, 5000, LONG]))
def test_what_is_written_is_read_again(entries: list[Record], number: int, length: int) -> None:
    """A file's data is beside it, and a file with several names has its second one at the end."""
    data, wanted, content = bytearray(HEADER), [], os.urandom(length)
    depth = files = runs = numbered = notes = 0
    for record in entries:
        if record.kind == Kind.FILE and numbered < number:
            numbered += 1
            record = record._replace(number=numbered)
        wanted.append(record)
        depth += record.kind == Kind.FOLDER
        notes += record.kind == Kind.NOTE
        if record.kind == Kind.FILE and length and record.size >= length:
            wanted.append(Record(Kind.DATA, size=record.size - length, length=length))
            runs += 1
        files += record.kind != Kind.NOTE
    if numbered:
        wanted.append(Record(Kind.HARD, b"twin", number=numbered))
        files += 1
    wanted += [Record(Kind.LEAVE)] * depth
    wanted.append(Record(Kind.END, size=files, length=runs * length, number=notes))
    for record in wanted:
        data += encode(record, len(data))
        if record.kind == Kind.DATA:
            data += content + bytes(-length % archive.UNIT)
    found = read(bytes(data))
    assert [record._replace(position=0) for record in found] == wanted
    for record in found:
        if record.kind == Kind.DATA:
            assert data[record.position : record.position + length] == content
            assert length < LONG or record.position % BLOCK == 0


@settings(max_examples=SEED_EXAMPLES)
@given(st.binary(max_size=400), st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255))))
def test_anything_else_is_refused_in_our_own_words(
    tail: bytes, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(HEADER)
    for record in (
        Record(Kind.FOLDER, b"d", 0o755),
        Record(Kind.FILE, b"f", 0o644, 5),
        Record(Kind.DATA, length=5),
    ):
        data += encode(record, len(data))
    data += b"words" + bytes(3)
    for record in (Record(Kind.LEAVE), Record(Kind.END, size=2, length=5)):
        data += encode(record, len(data))
    data += tail
    for at, value in changes:
        data[at % len(data)] = value
    try:
        found = read(bytes(data))
    except ProtocolError:
        return
    for record in found:
        assert b"/" not in record.name and b"\0" not in record.name
        assert record.name not in (b".", b"..") and len(record.name) <= 255
        assert record.position + record.length <= len(data) or record.kind != Kind.DATA
    assert found[-1].kind == Kind.END


def test_too_deep_is_refused() -> None:
    data = bytearray(HEADER)
    for _ in range(archive.DEPTH_MAX + 1):
        data += encode(Record(Kind.FOLDER, b"d", 0o755), len(data))
    with pytest.raises(ProtocolError, match="too deep"):
        read(bytes(data))


def test_a_file_that_claims_more_data_than_there_is_costs_nothing() -> None:
    data = bytearray(HEADER)
    data += encode(Record(Kind.FILE, b"f", 0o644, 1 << 44), len(data))
    data += encode(Record(Kind.DATA, length=1 << 44), len(data))
    with pytest.raises(ProtocolError, match="middle of a file"):
        read(bytes(data))


def test_a_reader_that_gets_less_than_the_file_had_says_so() -> None:
    data = HEADER + encode(Record(Kind.END), len(HEADER))
    cut = Window(lambda at, size: data[at : at + size][:20], len(data))
    with pytest.raises(ProtocolError, match="middle of a record"):
        list(records(cut))


@pytest.mark.parametrize(
    "body",
    [
        b"\1",
        b"\1\0\0\0",
        b"\5\0\0\0user.",
        b"\6\0\0\0User.x",
        b"\6\0\1\0user.x",
        b"\7\0\0\0user.a\0",
    ],
)
def test_attributes_that_are_none_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        archive.attributes(body)


def test_attributes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        archive.encode_attributes([(b"user.a", bytes(60000)), (b"user.b", bytes(60000))])


@pytest.mark.parametrize("length", [0, 1, 100, 4000, LONG])
def test_records_across_the_pieces_in_which_an_archive_is_read(length: int) -> None:
    """Names of all lengths, so that records begin and end at every place of a piece."""
    data = bytearray(HEADER)
    wanted: list[Record] = []
    while len(data) < 3 * archive.WINDOW:
        number = len(wanted)
        name = (b"%d" % number).rjust(1 + number % 255, b"n")
        wanted.append(Record(Kind.FILE, name, 0o644, length))
        data += encode(wanted[-1], len(data))
        if length:
            wanted.append(Record(Kind.DATA, size=0, length=length))
            data += encode(wanted[-1], len(data)) + bytes(length)
            data += bytes(-len(data) % archive.UNIT)
    files = sum(record.kind == Kind.FILE for record in wanted)
    wanted.append(Record(Kind.END, size=files, length=files * length))
    data += encode(wanted[-1], len(data))
    assert [record._replace(position=0) for record in read(bytes(data))] == wanted
