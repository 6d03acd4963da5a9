"""A hostile tree as an image: as a folder, as a tar file, as the layer of an OCI archive."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.facts import Image
from reconcilers.images.store import Images
from reconcilers.images.tree import BadImage
from tests import hostile
from tests.registry import Layout
from tests.unit.images.layouts import layer
from tests.unit.images.test_fetch import nothing_begun

pytestmark = pytest.mark.skipif(not shutil.which("sqfstar"), reason="squashfs-tools is missing")
KINDS = ["folder", "tar", "layer"]


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "images")


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    with hostile.guarded(tmp_path / "canary") as path:
        yield path


def base_of(kind: str, folder: Path) -> str:
    """The tree in `folder` as a Boxfile would name it."""
    if kind == "folder":
        return f"rootfs:{folder}"
    packed = folder.with_name("root.tar")
    options = ["--xattrs", "--xattrs-include=*", "--sparse", "--format=pax"]
    subprocess.run(["tar", *options, "-C", folder, "-cf", packed, "."], check=True, timeout=60)
    return f"rootfs:{packed}" if kind == "tar" else archived(folder.parent, packed.read_bytes())


def archived(folder: Path, *layers: bytes) -> str:
    """An OCI archive of these layers."""
    if not shutil.which("skopeo"):
        pytest.skip("skopeo is missing")
    layout = Layout(folder / "layout")
    layout.image("only", *layers)
    with tarfile.open(folder / "image.tar", "w") as archive:
        archive.add(layout.folder, ".")
    return f"oci-archive:{folder / 'image.tar'}"


def listing(image: Image) -> dict[str, str]:
    """Path to the line that `unsquashfs -lln` shows of it."""
    argv = ["unsquashfs", "-lln", str(image.path)]
    said = subprocess.run(argv, capture_output=True, check=True).stdout
    lines = said.decode("utf-8", "surrogateescape").splitlines()
    found = (line.partition(" squashfs-root/") for line in lines)
    return {name.partition(" -> ")[0]: f"{facts} {name}" for facts, _, name in found if name}


@pytest.mark.parametrize("kind", KINDS)
def test_what_leads_away_stays_a_word_in_the_image(
    tmp_path: Path, images: Images, canary: Path, kind: str
) -> None:
    """Links are links, specials are not opened, devices are left out; what gives rights gives them
    in the guest alone.
    """
    source = tmp_path / "source"
    source.mkdir()
    hostile.make(source, canary, small=True)
    if os.geteuid() != 0:
        (source / "closed").chmod(0o700)  # only root reads it
    image = images.build(base_of(kind, source))
    found = listing(image)
    for name, target in {**hostile.LINKS, "absolute": str(canary)}.items():
        assert found[name].startswith("lrwxrwxrwx") and found[name].endswith(f"{name} -> {target}")
    assert found["fifo"].startswith("p")
    assert not {"character", "block", "socket"} & found.keys()
    assert found["setuid"].startswith("-rwsr-xr-x")
    assert hostile.SECRET.encode() not in image.path.read_bytes()
    made = tmp_path / "made"
    argv = ["unsquashfs", "-n", "-no-xattrs", "-excludes", "-d", str(made), str(image.path)]
    subprocess.run([*argv, "fifo", "absolute", "twin-of-link"], check=True, capture_output=True)
    for odd, words in hostile.NAMES.items():
        assert (made / os.fsdecode(odd)).read_text() == words
    nothing_begun(tmp_path / "images")


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_longer_than_any_refuses_the_image(
    tmp_path: Path, images: Images, canary: Path, kind: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    hostile.make(source, canary)
    (source / "sparse").unlink()
    (source / "closed").chmod(0o700)
    with pytest.raises(BadImage, match="longer than 4095"):
        images.build(base_of(kind, source))
    assert not list((tmp_path / "images").glob("[0-9a-f]*"))
    hostile.remove(source)


@pytest.mark.parametrize("kind", ["tar", "layer"])
@pytest.mark.parametrize("name", ["../canary", "/CANARY", "in/../../canary", "x/../../../canary"])
@pytest.mark.parametrize("how", ["-", "d", "l", "h"])
def test_an_entry_that_leads_away_refuses_the_image(
    tmp_path: Path, images: Images, canary: Path, kind: str, name: str, how: str
) -> None:
    name = name.replace("/CANARY", str(canary))
    entry = ("bait", "h", name) if how == "h" else (name, how, b"mine" if how == "-" else "x")
    hostile_layer = layer(("in", "d"), ("x", "l", "in"), entry)
    path = tmp_path / "root.tar"
    path.write_bytes(hostile_layer)
    base = f"rootfs:{path}" if kind == "tar" else archived(tmp_path, hostile_layer)
    with pytest.raises(BadImage, match=r"absolute|\.\."):
        images.build(base)
    assert not list((tmp_path / "images").glob("[0-9a-f]*"))


@pytest.mark.parametrize("kind", ["tar", "layer"])
def test_a_link_and_then_an_entry_through_it_stays_in_the_image(
    tmp_path: Path, images: Images, canary: Path, kind: str
) -> None:
    """In one step and in two: on the host, `through/canary` would be the canary."""
    one = layer(("through", "l", str(tmp_path)), ("step1", "l", "step2"), ("step2", "l", "../.."))
    two = layer(("through/canary", "-", b"mine"), ("step1/canary", "-", b"mine"))
    path = tmp_path / "root.tar"
    path.write_bytes(layer(("through", "l", str(tmp_path)), ("through/canary", "-", b"mine")))
    base = f"rootfs:{path}" if kind == "tar" else archived(tmp_path, one, two)
    image = images.build(base)
    found = listing(image)
    assert f"{tmp_path}/canary".removeprefix("/") in found
    assert found["through"].startswith("l")
