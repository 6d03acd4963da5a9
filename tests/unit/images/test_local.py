"""Images of what lies on this host: archives, tar files and folders, read and never followed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reconcilers.images import fetch, folder, sources
from reconcilers.images.folder import FolderSource
from reconcilers.images.store import Images
from reconcilers.images.tree import BadImage, File
from reconcilers.mounts import Rules, Writable
from specs.errors import HostError
from tests.unit.images.layouts import layer
from tests.unit.images.test_fetch import content, nothing_begun, paths

pytestmark = pytest.mark.skipif(not shutil.which("sqfstar"), reason="squashfs-tools is missing")
needs_skopeo = pytest.mark.skipif(not shutil.which("skopeo"), reason="skopeo is missing")
ROOT = layer(("bin", "d"), ("bin/sh", "-", b"#!"), ("lib", "l", "usr/lib"), uid=7)
CANARY = b"never to be read"


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "images")


# -- tar files


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress, zstd])
def test_a_tar_file_is_a_root(
    tmp_path: Path, images: Images, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "root.tar").write_bytes(pack(ROOT))
    built = images.build(f"rootfs:{tmp_path}/root.tar")
    assert paths(built) == {"bin", "bin/sh", "lib"}
    assert content(built, "bin/sh") == b"#!"


def test_the_names_of_whiteouts_are_names_in_a_tar_file_of_a_root(
    images: Images, tmp_path: Path
) -> None:
    """It is no layer, there is nothing beneath it that they could hide."""
    names = ("kept", ".wh.kept", ".wh..wh..opq")
    root = layer(("d", "d"), *((f"d/{name}", "-") for name in names))
    (tmp_path / "root.tar").write_bytes(root)
    built = images.build(f"rootfs:{tmp_path}/root.tar")
    assert {f"d/{name}" for name in names} <= paths(built)


def two_streams(data: bytes) -> bytes:
    """As `pixz` and `cat` leave them, with padding between and behind."""
    return lzma.compress(data[:700]) + bytes(8) + lzma.compress(data[700:]) + bytes(4)


def test_an_xz_file_of_several_streams_is_read_to_its_end(tmp_path: Path, images: Images) -> None:
    (tmp_path / "root.tar").write_bytes(two_streams(ROOT))
    assert paths(images.build(f"rootfs:{tmp_path}/root.tar")) == {"bin", "bin/sh", "lib"}


def test_an_xz_file_that_asks_for_much_memory_is_refused(tmp_path: Path, images: Images) -> None:
    """A byte in it says how much: up to 4 GiB, which so many zeros would then take."""
    data = bytearray(lzma.compress(ROOT))
    size = (data[12] + 1) * 4  # of the header of its block, which is behind 12 bytes of the file's
    assert data[14:16] == b"\x21\x01"  # the filter LZMA2, and one byte that says how much
    data[16] = 37  # 1.5 GiB
    data[8 + size : 12 + size] = zlib.crc32(data[12 : 8 + size]).to_bytes(4, "little")
    (tmp_path / "root.tar").write_bytes(data)
    with pytest.raises(BadImage, match="Memory usage limit exceeded"):
        images.build(f"rootfs:{tmp_path}/root.tar")


@pytest.mark.parametrize(
    "data",
    [gzip.compress(ROOT)[:-9], lzma.compress(ROOT)[:-9], b"\x28\xb5\x2f\xfd" * 9, b"text", b""],
)
def test_a_tar_file_that_is_none_or_breaks_off_is_refused(
    tmp_path: Path, images: Images, data: bytes
) -> None:
    (tmp_path / "root.tar").write_bytes(data)
    if not data:
        assert paths(images.build(f"rootfs:{tmp_path}/root.tar")) == set()
        return
    with pytest.raises(BadImage, match=f"rootfs:{tmp_path}/root.tar: "):
        images.build(f"rootfs:{tmp_path}/root.tar")
    assert list((tmp_path / "images").iterdir()) == []


def test_more_owners_than_an_image_can_hold_are_refused_at_once(
    tmp_path: Path, images: Images
) -> None:
    """Folders of 1,000, since the tool looks through a folder for each name in it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(40_000):
            info = tarfile.TarInfo(f"{number // 1000}/{number}")
            info.uid, info.gid = number, 100_000 + number
            archive.addfile(info)
    (tmp_path / "root.tar").write_bytes(out.getvalue())
    with pytest.raises(BadImage, match="more than 65536 different owners"):
        images.build(f"rootfs:{tmp_path}/root.tar")


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_tar_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path,
    images: Images,
    monkeypatch: pytest.MonkeyPatch,
    pack: Callable[[bytes], bytes],
) -> None:
    monkeypatch.setattr("reconcilers.images.localfile.LAYER_MAX", 1 << 20)
    (tmp_path / "root.tar").write_bytes(pack(bytes(3 << 20)))
    with pytest.raises(BadImage, match="unpacks to more than"):
        images.build(f"rootfs:{tmp_path}/root.tar")


def test_a_changed_tar_file_is_another_image_only_when_it_is_asked_for_again(
    tmp_path: Path, images: Images
) -> None:
    base = f"rootfs:{tmp_path}/root.tar"
    (tmp_path / "root.tar").write_bytes(ROOT)
    first = images.build(base)
    (tmp_path / "root.tar").write_bytes(layer(("new", "-")))
    assert images.build(base) == first
    (tmp_path / "images/refs.toml").unlink()
    assert images.observe(base) is None
    assert paths(images.build(base)) == {"new"}


@pytest.mark.parametrize("kind", ["missing", "link", "fifo", "socket", "device"])
def test_what_is_no_file_is_never_opened(tmp_path: Path, images: Images, kind: str) -> None:
    place, canary = tmp_path / "root.tar", tmp_path / "canary"
    canary.write_bytes(CANARY)
    if kind == "link":
        place.symlink_to(canary)
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(place))
    elif kind == "device":
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        os.mknod(place, 0o600 | 0o020000, os.makedev(5, 2))
    for base in (f"rootfs:{place}", f"oci-archive:{place}"):
        with pytest.raises(HostError, match=r"link: name the file|no file|No such file"):
            images.build(base)


# -- folders


def made_folder(folder: Path) -> Path:
    root = folder / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/sh").write_bytes(b"#!")
    (root / "bin/sh").chmod(0o4755)
    os.link(root / "bin/sh", root / "bin/ash")
    (root / "out").symlink_to("/etc/shadow")
    (root / "up").symlink_to("../canary")
    (folder / "canary").write_bytes(CANARY)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(root / "sock"))
    (root / os.fsdecode(b"\xff\n")).write_bytes(b"odd")
    with open(root / "holes", "wb") as file:
        file.truncate(40 << 20)
        file.seek(1 << 20)
        file.write(b"data")
    return root


@pytest.mark.parametrize("what", ["names", "attributes"])
def test_what_is_held_of_a_folder_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(folder, "TEXT_MAX", 300)
    for number in range(4):
        (tmp_path / str(number)).write_text("")
        if what == "attributes":
            os.setxattr(tmp_path / str(number), "user.note", b"x" * 100)
        else:
            (tmp_path / str(number)).rename(tmp_path / (str(number) * 100))
    at = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BadImage, match="names and attributes of more"):
        FolderSource(at, "root", threading.Event())
    os.close(at)


def test_a_folder_that_only_looks_the_same_is_another_image(tmp_path: Path, images: Images) -> None:
    """Names, sizes and times are anybody's to choose; reproducible builds make them the same."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "sh").write_bytes(b"good")
    os.utime(root / "sh", ns=(7, 7))
    os.utime(root, ns=(7, 7))
    first = images.build(f"rootfs:{root}")
    shutil.copytree(root, tmp_path / "copy")
    (tmp_path / "copy/sh").write_bytes(b"evil")
    os.utime(tmp_path / "copy/sh", ns=(7, 7))
    os.utime(tmp_path / "copy", ns=(7, 7))
    other = images.build(f"rootfs:{tmp_path}/copy")
    assert other.digest != first.digest and content(other, "sh") == b"evil"
    (root / "sh").write_bytes(b"next")
    os.utime(root / "sh", ns=(7, 7))
    assert content(images.build(f"rootfs:{root}", again=True), "sh") == b"next"
    assert images.build(f"rootfs:{tmp_path}/copy", again=True) == other


def test_a_folder_is_a_root_and_its_links_stay_links(tmp_path: Path, images: Images) -> None:
    built = images.build(f"rootfs:{made_folder(tmp_path)}")
    listing = subprocess.run(
        ["unsquashfs", "-lln", str(built.path)], capture_output=True, check=True
    ).stdout.decode("utf-8", "backslashreplace")
    owner = f"{os.geteuid()}/{os.getegid()}" if os.geteuid() == 0 else "0/0"
    assert f"-rwsr-xr-x {owner}" in listing
    assert "squashfs-root/out -> /etc/shadow" in listing
    assert "squashfs-root/up -> ../canary" in listing
    assert "prw-r--r--" in listing
    assert "sock" not in listing
    assert content(built, "bin/ash") == b"#!"
    assert built.path.stat().st_size < 1 << 20, "holes take no room"
    assert CANARY not in built.path.read_bytes()
    nothing_begun(tmp_path / "images")


def source_of(folder: Path) -> FolderSource:
    descriptor = os.open(folder, os.O_PATH)
    try:
        return FolderSource(descriptor, str(folder), threading.Event())
    finally:
        os.close(descriptor)


def test_a_folder_is_known_by_what_it_holds(tmp_path: Path) -> None:
    root = made_folder(tmp_path)
    before = source_of(root)
    assert source_of(root).identity == before.identity
    shell = before.tree.find([b"bin", b"sh"])
    assert isinstance(shell, File)
    assert shell is before.tree.find([b"bin", b"ash"])
    seen = {before.identity}
    (root / "new").write_text("")
    seen.add(source_of(root).identity)
    (root / "bin").chmod(0o700)
    seen.add(source_of(root).identity)
    (root / "up").unlink()
    (root / "up").symlink_to("x")
    seen.add(source_of(root).identity)
    assert len(seen) == 4


def test_a_folder_that_changes_while_it_is_read_makes_no_image(tmp_path: Path) -> None:
    root = made_folder(tmp_path)
    found = source_of(root)
    shell = found.tree.find([b"bin", b"sh"])
    assert isinstance(shell, File)
    (root / "bin/sh").write_bytes(b"longer than before")
    with pytest.raises(BadImage, match="changed while it was read"):
        found.descriptor(shell.content.source)
    with pytest.raises(BadImage, match="changed while it was read"):
        found.unchanged()
    (root / "bin/sh").unlink()
    (root / "bin/sh").symlink_to(tmp_path / "canary")
    with pytest.raises(BadImage, match="changed while it was read"):
        found.descriptor(shell.content.source)
    shutil.rmtree(root / "bin")
    (root / "bin").symlink_to("/bin")
    with pytest.raises(BadImage, match="changed while it was read"):
        found.descriptor(shell.content.source)
    found.close()


def test_another_file_system_in_a_folder_is_left_out(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    root = made_folder(tmp_path)
    (root / "proc").mkdir()
    script = (
        f"mount -t tmpfs none {root}/proc && touch {root}/proc/inside && exec {sys.executable}"
        f" -c \"from tests.unit.images.test_local import *; s = source_of(Path('{root}'));"
        " print(s.tree.find([b'proc']) is not None, s.tree.find([b'proc', b'inside']))\""
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "True None\n", done.stderr


# -- what of the host may be made an image


def rules(*forbidden: Path) -> Rules:
    return Rules(forbidden=tuple(("the home of box", str(path)) for path in forbidden))


def test_a_forbidden_folder_is_no_image_nor_what_holds_it(tmp_path: Path, images: Images) -> None:
    root = made_folder(tmp_path)
    (tmp_path / "root.tar").write_bytes(ROOT)
    with pytest.raises(sources.Unreadable, match="lies in, the home of box"):
        images.build(f"rootfs:{root}", rules=rules(tmp_path))
    with pytest.raises(sources.Unreadable, match="it holds the home of box"):
        images.build(f"rootfs:{root}", rules=rules(root / "bin"))
    with pytest.raises(sources.Unreadable, match="lies in, the home of box"):
        images.build(f"rootfs:{tmp_path}/root.tar", rules=rules(tmp_path))
    # A file in a folder that also holds something forbidden is still only that file.
    images.build(f"rootfs:{tmp_path}/root.tar", rules=rules(root))


def test_a_path_that_another_guest_can_bend_is_refused(tmp_path: Path, images: Images) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    root = made_folder(shared)
    facts = os.stat(shared)
    other = Writable("elm", ((facts.st_dev, facts.st_ino),), first=True)
    bent = replace(rules(), writable=(other,))
    with pytest.raises(sources.Unreadable, match="the guest of elm can write"):
        images.build(f"rootfs:{root}", rules=bent)
    (shared / "link").symlink_to(tmp_path)
    with pytest.raises(sources.Unreadable, match="the guest of elm can write"):
        images.build(f"rootfs:{shared}/link/images", rules=bent)


def test_no_skopeo_is_asked_for_what_lies_here(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PROGRAM", "skopeo-that-is-not-here")
    (tmp_path / "root.tar").write_bytes(ROOT)
    images.build(f"rootfs:{tmp_path}/root.tar")
