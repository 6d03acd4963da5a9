"""What reaches the squashfs tool: one tar file of ours, and what the tool makes of it."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers.images import tarwrite
from reconcilers.images.guestneeds import CONTENTS, complete
from reconcilers.images.layers import Entry, Kind, Merge
from reconcilers.images.tarwrite import header, write_tree
from reconcilers.images.tree import BadImage, Content, File, Node, Tree
from tests.unit.images.layouts import layer, listed, merged

needs_tool = pytest.mark.skipif(not shutil.which("sqfstar"), reason="squashfs-tools is missing")
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")


def written(tree: Tree, folder: Path, *sources: bytes) -> bytes:
    opened = []
    for number, data in enumerate(sources):
        (folder / f"source{number}").write_bytes(data)
        opened.append(os.open(folder / f"source{number}", os.O_RDONLY))
    try:
        with open(folder / "out.tar", "w+b") as out:
            count = write_tree(tree, opened.__getitem__, out, lambda written: None)
            assert count == 1 + len({id(node) for _, node in tree.walk()})
            out.seek(0)
            return out.read()
    finally:
        for descriptor in opened:
            os.close(descriptor)


@given(
    st.binary(min_size=1, max_size=300).filter(lambda name: b"\0" not in name and name[-1] != 47),
    st.integers(0, 0o7777),
    st.integers(0, (1 << 32) - 2),
    st.integers(0, (1 << 32) - 1),
    st.binary(max_size=100),
)
def test_a_header_says_what_it_was_given(
    name: bytes, mode: int, owner: int, mtime: int, value: bytes
) -> None:
    node = Node(mode, owner, owner, mtime, ((b"user.x", value),))
    data = header(name, node, b"0") + bytes(1024)
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        [found] = archive.getmembers()
    assert found.name.encode("utf-8", "surrogateescape") == name
    assert (found.mode, found.uid, found.gid, found.mtime) == (mode, owner, owner, mtime)
    kept = found.pax_headers["SCHILY.xattr.user.x"].encode("utf-8", "surrogateescape")
    assert kept == value


def test_a_large_file_has_its_size_in_the_extended_header() -> None:
    data = header(b"big", Node(0o644), b"0", size=9 << 30)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = archive.next()
    assert found is not None and found.size == 9 << 30


def test_more_than_can_be_stored_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarwrite, "BYTES_MAX", 1 << 20)
    merge = Merge()
    holes = Content(0, 0, 1 << 19, ())
    merge.apply([Entry(b"f%d" % number, Kind.file, content=holes) for number in range(2)])
    written(merge.tree, tmp_path, b"")
    merge.apply([Entry(b"last", Kind.file, content=Content(0, 0, 1, ()))])
    with pytest.raises(BadImage, match="take more than"):
        written(merge.tree, tmp_path, b"")


def test_links_make_no_path_that_is_longer_than_any(tmp_path: Path) -> None:
    """Each is short as it is written, and stands below what the former led to."""
    merge = Merge()
    part = b"/".join([b"d" * 250] * 12)
    merge.apply([Entry(part, Kind.folder), Entry(b"s", Kind.symlink, link=part)])
    written(merge.tree, tmp_path, b"")
    merge.apply([Entry(b"s/" + part, Kind.folder)])
    with pytest.raises(BadImage, match="longer than 4095"):
        written(merge.tree, tmp_path, b"")


def test_a_source_that_became_shorter_is_refused(tmp_path: Path) -> None:
    merge = Merge()
    merge.apply([Entry(b"f", Kind.file, content=Content(0, 0, 100))])
    with pytest.raises(BadImage, match="became shorter"):
        written(merge.tree, tmp_path, b"x" * 50)


@needs_tool
def test_the_tool_makes_of_it_what_was_meant(tmp_path: Path) -> None:
    first = layer(
        ("bin", "d"), ("bin/ping", "-", b"P" * 5000), ("d" * 200, "d"), ("pipe", "p"),
        ("odd\udcff\n", "-", b"odd"), ("sh", "l", "bin/ping"),
        mtime=1_000_000_007.0, uid=1000, gid=70000, mode=0o4755,
        pax_headers={"SCHILY.xattr.security.capability": CAPABILITY.decode()},
    )  # fmt: skip
    second = layer(("d" * 200 + "/" + "e" * 200, "h", "bin/ping"), uid=3 << 22)
    merge = merged(first, second)
    merge.apply(
        [Entry(b"holes", Kind.file, content=Content(0, 512, 100_000, ((70_000, 600, 512),)))]
    )
    complete(merge.tree, 2)
    data = written(merge.tree, tmp_path, first, second, CONTENTS)
    image = tmp_path / "image"
    tool = ["sqfstar", "-quiet", "-no-progress", "-comp", "lz4", str(image)]
    subprocess.run(tool, input=data, check=True, timeout=60)
    [inodes] = struct.unpack_from("<I", image.read_bytes(), 4)
    assert inodes == 1 + len({id(node) for _, node in merge.tree.walk()})
    listing = subprocess.run(
        ["unsquashfs", "-lln", "-UTC", str(image)], capture_output=True, check=True, timeout=60
    ).stdout
    rows = {}
    for line in listing.replace(b"odd\xff\n", b"odd\xff").splitlines():
        facts, _, path = line.partition(b"squashfs-root")
        if path:
            rows[path[1:]] = b" ".join(facts.split())
    assert rows[b"bin/ping"] == b"-rwsr-xr-x 1000/70000 5000 2001-09-09 01:46"
    assert rows[b"d" * 200 + b"/" + b"e" * 200] == rows[b"bin/ping"]
    assert rows[b"pipe"].startswith(b"prwsr-xr-x 1000/70000")
    assert rows[b"odd\xff"].split()[2] == b"3"
    assert rows[b"sh -> bin/ping"].startswith(b"lrwxrwxrwx")
    assert rows[b"tmp"].startswith(b"drwxrwxrwt 0/0")
    assert b"proc" in rows and b"etc/resolv.conf" in rows
    content = subprocess.run(["unsquashfs", "-cat", str(image), "holes", "etc/hostname"],
                             capture_output=True, check=True, timeout=60).stdout  # fmt: skip
    assert content == bytes(70_000) + first[512:1112] + bytes(29_400) + b"box\n"


# -- what a guest needs


def test_an_empty_image_gets_what_every_guest_needs() -> None:
    tree = Tree()
    assert complete(tree, 0) == ()
    found = listed(tree, CONTENTS)
    for name in ("proc", "sys", "dev", "run", "tmp", "data", "mnt", "etc", "root"):
        assert found[name] == "d"
    assert found["etc/hosts"] == "127.0.0.1 localhost\n::1 localhost\n"
    assert (found["etc/hostname"], found["etc/resolv.conf"]) == ("box\n", "")


def test_links_in_the_place_of_mount_points_become_folders_and_are_named() -> None:
    tree = merged(layer(("data", "l", "/srv"), ("tmp", "l", "var/tmp"), ("proc", "-"))).tree
    assert [text.split()[0] for text in complete(tree, 0)] == ["/proc", "/tmp", "/data"]
    found = listed(tree, CONTENTS)
    assert (found["data"], found["tmp"], found["proc"]) == ("d", "d", "d")


def test_what_an_image_says_of_itself_stays() -> None:
    said = layer(("tmp", "d"), ("etc", "d"), ("etc/hosts", "-", b"mine"), ("etc/hostname", "-"),
                 ("etc/resolv.conf", "l", "../run/x"), mode=0o700)  # fmt: skip
    tree = merged(said).tree
    complete(tree, 0)
    assert tree.root.children[b"tmp"][0].mode == 0o700
    etc = tree.folder([b"etc"])
    assert etc is not None
    assert isinstance(hosts := etc.children[b"hosts"][0], File) and hosts.content.size == 4
    assert isinstance(etc.children[b"resolv.conf"][0], File)
    assert isinstance(name := etc.children[b"hostname"][0], File) and name.content.size == 4
