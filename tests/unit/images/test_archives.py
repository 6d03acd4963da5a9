"""OCI archives as images: chosen, read as they were, and unpacked beside nothing else."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import socket
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from reconcilers.hostpath import opened_directory
from reconcilers.images import fetch, ocilayout
from reconcilers.images.localfile import LocalFile
from reconcilers.images.store import Images
from reconcilers.images.tree import BadImage
from specs.errors import CommandError
from tests.registry import Layout
from tests.unit.images.layouts import Item, layer
from tests.unit.images.test_fetch import nothing_begun, paths

pytestmark = pytest.mark.skipif(not shutil.which("sqfstar"), reason="squashfs-tools is missing")
needs_skopeo = pytest.mark.skipif(not shutil.which("skopeo"), reason="skopeo is missing")
ROOT = layer(("bin", "d"), ("bin/sh", "-", b"#!"), ("lib", "l", "usr/lib"), uid=7)


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "images")


def archived(folder: Path, *tags: str) -> Path:
    layout = Layout(folder / "layout")
    for tag in tags:
        layout.image(tag, ROOT, layer((tag, "-", tag.encode())), User=tag)
    target = folder / "image.tar"
    with tarfile.open(target, "w") as archive:
        archive.add(layout.folder, ".")
    return target


@needs_skopeo
def test_an_archive_with_one_image_needs_no_tag(tmp_path: Path, images: Images) -> None:
    built = images.build(f"oci-archive:{archived(tmp_path, 'only')}")
    assert paths(built) == {"bin", "bin/sh", "lib", "only"}
    assert '"user": "only"' in (built.path.parent / "about.json").read_text()
    nothing_begun(tmp_path / "images")


@needs_skopeo
def test_a_tag_chooses_an_image_in_an_archive(tmp_path: Path, images: Images) -> None:
    archive = archived(tmp_path, "one", "two")
    assert "two" in paths(images.build(f"oci-archive:{archive}:two"))
    assert "one" in paths(images.build(f"oci-archive:{archive}:one"))
    with pytest.raises(CommandError, match='three: no descriptor found for reference "three"'):
        images.build(f"oci-archive:{archive}:three")


@needs_skopeo
def test_an_archive_is_the_one_that_was_hashed_wherever_its_path_leads_by_then(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hash names the image for everybody who has that file; whoever owns a folder on the way
    can have another file stand there while skopeo reads it.
    """
    for tag in ("good", "evil"):
        (tmp_path / tag).mkdir()
        archived(tmp_path / tag, tag)
    place, aside = tmp_path / "good", tmp_path / "aside"
    copied = fetch._copied

    def swapped(*arguments: Any, **named: Any) -> Any:
        place.rename(aside)
        (tmp_path / "evil").rename(place)
        try:
            return copied(*arguments, **named)
        finally:
            place.rename(tmp_path / "evil")
            aside.rename(place)

    monkeypatch.setattr(fetch, "_copied", swapped)
    built = images.build(f"oci-archive:{place}/image.tar")
    assert "good" in paths(built) and "evil" not in paths(built)
    nothing_begun(tmp_path / "images")


def test_an_archive_is_whole_also_on_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocilayout, "_PIECE", 1 << 20)
    name, data = "blobs/sha256/" + "a" * 64, os.urandom(3 << 20) + b"end"
    (tmp_path / "file").write_bytes(layer((name, "-", data)))
    with opened_directory(str(tmp_path)) as at, tempfile.TemporaryDirectory(dir="/dev/shm") as far:
        file = LocalFile.opened(at.descriptor, "file", at.path)
        for folder in (tmp_path, Path(far)):
            ocilayout.unpack(file, folder / "copy", threading.Event())
            assert (folder / "copy" / name).read_bytes() == data
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(BadImage, match="changed while it was read"):
            ocilayout.unpack(file, tmp_path / "again", threading.Event())
        file.close()


def packed(path: Path, *, compressed: bool) -> None:
    """A good image and, around it, what leads to the canary beside `path`."""
    canary = str(path.with_name("canary"))
    layout = Layout(path.with_name("layout"))
    layout.image("only", ROOT)
    bait: list[Item] = [
        ("out", "l", canary), ("out/written", "-", b"mine"), ("blobs/x", "-", b""),
        ("up", "l", "../../../../../../../.." + canary), ("up/written", "-", b"mine"),
        ("../canary/written", "-", b"mine"), (canary + "/written", "-", b"mine"),
        ("pipe", "p"), ("device", "c"), ("hard", "h", "/etc/hostname"),
        ("blobs/sha256/../../../canary/written", "-", b"mine"),
    ]  # fmt: skip
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        with tarfile.open(fileobj=io.BytesIO(layer(*bait))) as first:
            for each in first.getmembers():
                archive.addfile(each, first.extractfile(each) if each.isreg() else None)
        archive.add(layout.folder, ".")
    path.write_bytes(gzip.compress(out.getvalue()) if compressed else out.getvalue())


@needs_skopeo
@pytest.mark.parametrize("compressed", [False, True])
def test_an_archive_writes_nothing_beside_its_own_folder(
    tmp_path: Path, images: Images, compressed: bool
) -> None:
    """As skopeo unpacks one, a link in it and then a file through that is a file anywhere."""
    (tmp_path / "canary").mkdir()
    packed(tmp_path / "image.tar", compressed=compressed)
    before = set(os.listdir("/var/tmp"))
    assert "bin/sh" in paths(images.build(f"oci-archive:{tmp_path}/image.tar"))
    assert not list((tmp_path / "canary").iterdir())
    assert not {each for each in set(os.listdir("/var/tmp")) - before if each.startswith("oci")}
    nothing_begun(tmp_path / "images")


@pytest.mark.parametrize(
    "entry",
    [
        ("blobs/sha256/" + "a" * 64, "l", "/etc/hostname"),
        ("index.json", "l", "/etc/hostname"),
        ("./index.json", "h", "/etc/hostname"),
        ("oci-layout", "p"),
        ("index.json", "-", bytes(ocilayout.DOCUMENT_MAX + 1)),
        ("oci-layout", "-", bytes(ocilayout.DOCUMENT_MAX + 1)),
    ],
)
def test_what_is_no_plain_file_makes_no_layout(
    tmp_path: Path, images: Images, entry: tuple[Any, ...]
) -> None:
    (tmp_path / "image.tar").write_bytes(layer(entry))
    with pytest.raises(BadImage, match=r"is no plain file|is larger than"):
        images.build(f"oci-archive:{tmp_path}/image.tar")
    nothing_begun(tmp_path / "images")


def test_an_archive_of_blobs_without_end_is_refused(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocilayout, "FILES_MAX", 2)
    blobs = [(f"blobs/sha256/{digit * 64}", "-", b"") for digit in "abc"]
    (tmp_path / "image.tar").write_bytes(layer(*blobs))
    with pytest.raises(BadImage, match="more than 2 blobs"):
        images.build(f"oci-archive:{tmp_path}/image.tar")
    nothing_begun(tmp_path / "images")


@needs_skopeo
def test_an_archive_sends_nobody_into_the_network(tmp_path: Path, images: Images) -> None:
    """A manifest may say where else a layer is; whoever asks there asks for a stranger."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        layout = Layout(tmp_path / "layout")
        layout.image("only", ROOT, of_layer={"urls": [address]})
        with tarfile.open(tmp_path / "image.tar", "w") as archive:
            archive.add(layout.folder, ".")
        with pytest.raises(CommandError, match="dial tcp"):
            images.build(f"oci-archive:{tmp_path}/image.tar")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
