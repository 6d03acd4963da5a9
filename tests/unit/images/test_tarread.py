"""Tar files that lie: sizes, headers and ends that are not what they say."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcilers.images.layers import Merge
from reconcilers.images.tarread import BLOCK, HEADER_MAX
from reconcilers.images.tree import BadImage, File
from tests.unit.images.layouts import layer, read


def header(name: str = "f", size: int = 0, kind: bytes = b"0", **settings: object) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for key, value in settings.items():
        setattr(info, key, value)
    return info.tobuf(format=tarfile.GNU_FORMAT)


def pax(*records: tuple[str, str], kind: bytes = b"x") -> bytes:
    body = b""
    for key, value in records:
        rest = f" {key}={value}\n".encode()
        length = len(rest) + 1
        while len(rest) + len(str(length)) != length:
            length += 1
        body += str(length).encode() + rest
    return header("x", len(body), kind) + body + bytes(-len(body) % BLOCK)


END = bytes(2 * BLOCK)


def count(data: bytes) -> int:
    return len(list(read(data)))


@pytest.mark.parametrize("data", [b"", END, bytes(BLOCK)])
def test_an_empty_layer_has_no_entries(data: bytes) -> None:
    assert count(data) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"no tar",
        b"x" * 10_000,
        header(size=-1) + END,
        header(size=-(1 << 40)) + END,
        header(size=1 << 50) + END,
        header(size=10) + b"only",
        header() + header()[:100],
        header() + b"x" * BLOCK + END,
        header("x", 1 << 40, b"x") + END,
        header("x", HEADER_MAX * 2, b"x") + bytes(HEADER_MAX * 2) + header() + END,
        header("x", -512, b"x") + END,
        header("x", 4, b"L") + END,
        header("x", 1 << 40, b"K") + END,
        pax(("size", "-1000")) + header() + END,
        pax(("size", "99999999999999999999999")) + header() + END,
        pax(("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")) + header() + END,
        pax(("GNU.sparse.map", "0,5,3,9"), ("GNU.sparse.size", "20"))
        + header(size=14)
        + bytes(512),
        pax(("GNU.sparse.map", "5,-5"), ("GNU.sparse.size", "20")) + header() + END,
        pax(("path", "y")) * 2000 + header() + END,
        pax(("uid", "-5")) + header() + END,
        pax(("uid", "99999999999")) + header() + END,
        header(kind=b"V") + END,
    ],
    ids=lambda data: f"{len(data)}-{hash(data) % 1000}",
)
def test_a_tar_file_that_lies_is_refused(data: bytes) -> None:
    with pytest.raises(BadImage):
        count(data)


def test_global_headers_do_not_grow_with_each_entry() -> None:
    """tarfile keeps them all, and copies them for each entry."""
    each = [pax((f"SCHILY.xattr.user.{n}", "x" * 9000), kind=b"g") + header() for n in range(20)]
    assert count(b"".join(each[:7]) + END) == 7
    with pytest.raises(BadImage, match="global headers"):
        count(b"".join(each) + END)


def test_a_list_of_holes_is_not_read_without_end() -> None:
    """It is the file's own content, of which tarfile makes numbers until it ends."""
    head = pax(("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "f"))
    numbers = b"9999999\n" + b"1\n" * (2 << 20)
    with pytest.raises(BadImage, match="headers of one entry"):
        count(head + header(size=len(numbers)) + numbers + END)


@pytest.mark.parametrize("mtime", ["-5", "1e999", "nan", "99999999999", "x"])
def test_an_odd_time_is_made_one_that_can_be_kept(mtime: str) -> None:
    [entry] = read(pax(("mtime", mtime)) + header() + END)
    assert 0 <= entry.mtime < 1 << 32


def test_an_archive_that_breaks_off_is_no_shorter_archive() -> None:
    whole = layer(("a", "-", b"x" * 2000), ("b", "-", b"y"), ("c", "-"))
    names = count(whole)
    assert names == 3
    for length in range(1, len(whole.rstrip(b"\0")), 97):
        cut = whole[:length]
        if length in (BLOCK * 5, BLOCK * 7):
            continue  # between two entries: without its end marker, and whole in itself
        with pytest.raises(BadImage):
            count(cut)


def test_a_sparse_file_is_the_stretches_that_are_stored(tmp_path: Path) -> None:
    """As GNU tar writes one: 40 GiB, of which 8 KiB are there."""
    big = tmp_path / "big"
    with open(big, "wb") as file:
        file.seek(1 << 30)
        file.write(b"A" * 4096)
        file.truncate(40 << 30)
    for style in (["--format=gnu"], ["--format=pax"], ["--format=pax", "--sparse-version=0.1"]):
        out = tmp_path / "out.tar"
        arguments = ["tar", "-C", str(tmp_path), "-S", *style, "-cf", str(out), "big"]
        assert os.spawnvp(os.P_WAIT, "tar", arguments) == 0
        with open(out, "rb") as archive:
            merge = Merge()
            merge.apply(read(archive.read()))
        found = merge.tree.find([b"big"])
        assert isinstance(found, File)
        assert found.content.size == 40 << 30
        assert found.content.pieces is not None
        assert sum(length for _, length, _ in found.content.pieces) == 4096


GOOD = layer(("a", "d"), ("a/b", "-", b"x" * 700), ("c", "l", "a"), ("d" * 150, "-"), uid=1 << 22)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=12))))
def test_bytes_that_were_changed_make_entries_or_an_error(
    changes: list[tuple[int, bytes]],
) -> None:
    data = bytearray(GOOD)
    for at, new in changes:
        data[at : at + len(new)] = new
    # A changed header needs its sum again, or nothing behind the sum is ever reached.
    for start in range(0, len(data) - BLOCK + 1, BLOCK):
        block = data[start : start + BLOCK]
        if block[257:262] == b"ustar":
            total = sum(block[:148]) + 256 + sum(block[156:])
            data[start + 148 : start + 156] = b"%06o\0 " % (total & 0o777777)
    try:
        Merge().apply(read(bytes(data)))
    except BadImage as error:
        assert error.message


@settings(max_examples=300)
@given(st.binary(max_size=4 * BLOCK))
def test_any_bytes_are_entries_or_an_error(data: bytes) -> None:
    try:
        for entry in read(data):
            assert entry.content.size >= 0
    except BadImage:
        return
