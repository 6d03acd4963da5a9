"""Images out of a real registry, and what is said when there is none."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reconcilers.facts import Image
from reconcilers.images import fetch
from reconcilers.images.store import Images
from reconcilers.images.tree import BadImage
from reconcilers.images.verify import open_verified
from reconcilers.process import GivenUp
from specs.errors import BoxError, CommandError
from specs.imagename import Registry as Name
from tests.registry import Registry, needs_registry, registry
from tests.unit.images.layouts import layer
from tests.unit.images.test_layers import FIVE

pytestmark = [
    needs_registry,
    pytest.mark.skipif(not shutil.which("sqfstar"), reason="squashfs-tools is missing"),
    pytest.mark.timeout(300),
]
NEEDED = {"proc", "sys", "dev", "run", "tmp", "data", "mnt", "root"}


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    with tempfile.TemporaryDirectory(prefix="boxtest-") as folder, registry(Path(folder)) as made:
        yield made


@pytest.fixture(autouse=True)
def as_user(served: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(served.home))
    for name in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "REGISTRY_AUTH_FILE", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def paths(image: Image) -> set[str]:
    """What the image holds, without what every guest needs."""
    listing = subprocess.run(
        ["unsquashfs", "-l", str(image.path)], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    found = {line.removeprefix("squashfs-root/") for line in listing if "/" in line}
    return found - NEEDED - {"etc", "etc/hosts", "etc/hostname", "etc/resolv.conf"}


def content(image: Image, *names: str) -> bytes:
    argv = ["unsquashfs", "-cat", str(image.path), *names]
    return subprocess.run(argv, capture_output=True, check=True).stdout


def nothing_begun(folder: Path) -> None:
    assert [path.name for path in folder.glob(".*")] == []


def test_a5_is_pulled_merged_and_written(served: Registry, tmp_path: Path) -> None:
    served.layout.image("a5", *FIVE, Env=["PATH=/bin", "LANG=C.UTF-8"], WorkingDir="/srv")
    name = served.push("a5", "team/whiteouts:5")
    images = Images(tmp_path)
    assert images.digest_for(name) == ""
    assert images.observe(name) is None
    built = images.build(name)
    assert paths(built) == {"etc/a"}
    assert content(built, "etc/a", "etc/hostname") == b"4box\n"
    os.close(open_verified(built))
    about = json.loads((built.path.parent / "about.json").read_text())
    assert about["image"]["env"] == ["PATH=/bin", "LANG=C.UTF-8"]
    assert images.observe(name) == built == Images(tmp_path).observe(name)
    nothing_begun(tmp_path)


def test_a5_malformed_whiteouts_are_refused_and_leave_nothing(
    served: Registry, tmp_path: Path
) -> None:
    served.layout.image("bad", *FIVE, layer((".wh...", "-"), (".wh.", "-")))
    name = served.push("bad", "team/bad:1")
    with pytest.raises(BadImage) as caught:
        Images(tmp_path).build(name)
    want = f'{name}: layer 5, entry ".wh...": it is a whiteout of no name'
    assert caught.value.message == want
    assert not caught.value.retry
    assert list(tmp_path.iterdir()) == []


def test_a_tag_is_resolved_once_and_a_moved_one_is_another_matter(
    served: Registry, tmp_path: Path
) -> None:
    served.layout.image("one", layer(("one", "-")))
    served.layout.image("two", layer(("two", "-")))
    name = served.push("one", "team/moving:latest")
    first = Images(tmp_path).build(name)
    served.push("two", "team/moving:latest")
    images = Images(tmp_path)
    assert images.observe(name) == first
    shutil.rmtree(first.path.parent)
    assert images.observe(name) is None
    assert paths(images.build(name)) == {"one"}, "the very image that it was"
    refs = tmp_path / "refs.toml"
    refs.write_text(refs.read_text().replace("team/moving", "team/other"))
    assert images.observe(name) is None, "whoever takes the line out has it looked up again"
    assert paths(images.build(name)) == {"two"}


def test_two_names_of_one_image_are_one_image(served: Registry, tmp_path: Path) -> None:
    served.layout.image("same", layer(("same", "-")))
    names = [served.push("same", f"team/same:{tag}") for tag in "abc"]
    images = Images(tmp_path)
    with ThreadPoolExecutor() as pool:
        built = {work.result() for work in [pool.submit(images.build, n) for n in names * 2]}
    assert len(built) == 1
    assert {path.name for path in tmp_path.iterdir()} == {built.pop().digest, "refs.toml"}


def test_the_image_for_this_machine_is_chosen(served: Registry, tmp_path: Path) -> None:
    mine = served.layout.image("", layer(("mine", "-")))
    arm = served.layout.image("", layer(("arm", "-")), architecture="arm64")
    served.layout.index("both", [(arm, "linux/arm64"), (mine, "linux/amd64")])
    served.layout.index("arm", [(arm, "linux/arm64"), (arm, "unknown/unknown")])
    name = served.push("both", "team/both:1", "--all")
    assert paths(Images(tmp_path).build(name)) == {"mine"}
    chosen = fetch.resolve(Name(served.host, "team/both", "1"), STOP).digest
    by_index = f"{served.host}/team/both@{chosen}"
    assert paths(Images(tmp_path).build(by_index)) == {"mine"}
    name = served.push("arm", "team/arm:1", "--all")
    with pytest.raises(BadImage, match=r"none for linux/amd64: it is there for linux/arm64$"):
        Images(tmp_path).build(name)


STOP = threading.Event()


def test_an_image_of_another_machine_without_an_index_is_refused(
    served: Registry, tmp_path: Path
) -> None:
    served.layout.image("lone", layer(("arm", "-")), architecture="arm64")
    name = served.push("lone", "team/lone:1")
    with pytest.raises(BadImage, match="it is for linux/arm64, and this machine is linux/amd64"):
        Images(tmp_path).build(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "cause", "fix"),
    [
        ("{host}/team/none:1", "manifest unknown", "skopeo list-tags docker://{host}/team/none"),
        ("registry.invalid/nope:0", "connection refused", "look whether the registry runs"),
    ],
)
def test_what_cannot_be_had_is_named_with_its_cause(
    served: Registry, tmp_path: Path, name: str, cause: str, fix: str
) -> None:
    name = name.format(host=served.host)
    with pytest.raises(CommandError) as caught:
        Images(tmp_path).build(name)
    assert caught.value.message.startswith(f"{name}: ")
    assert cause in caught.value.message
    assert "Error parsing image name" not in caught.value.message
    assert fix.format(host=served.host) in caught.value.fix
    assert caught.value.retry
    assert list(tmp_path.iterdir()) == []


def test_a_registry_that_wants_a_password_is_told_the_users(
    served: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.layout.image("secret", layer(("secret", "-")))
    name = served.push("secret", "team/secret:1")
    monkeypatch.setenv("HOME", str(served.stranger))
    with pytest.raises(CommandError, match="unauthorized") as caught:
        Images(tmp_path).build(name)
    assert caught.value.fix.startswith(f"skopeo login {served.host}")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(served.home / ".docker/config.json"))
    assert paths(Images(tmp_path).build(name)) == {"secret"}


def test_without_encryption_only_where_the_user_says_so(
    served: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CommandError, match="HTTP response to HTTPS client") as caught:
        Images(tmp_path / "images").build(f"{served.host}/team/secret:1")
    assert "insecure = true" in caught.value.fix


def test_a_blob_that_was_changed_is_no_layer(served: Registry, tmp_path: Path) -> None:
    served.layout.image("spoilt", layer(("spoilt", "-", b"spoilt" * 1000)))
    name = served.push("spoilt", "team/spoilt:1")
    digest = fetch.resolve(Name(served.host, "team/spoilt", "1"), STOP).digest
    document = json.loads(served_blob(served, digest).read_bytes())
    blob = served_blob(served, document["layers"][0]["digest"])
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(BoxError):
        Images(tmp_path).build(name)
    assert list(tmp_path.iterdir()) == []


def served_blob(served: Registry, digest: str) -> Path:
    name = digest.removeprefix("sha256:")
    return served.blobs / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"


def test_a_layer_that_unpacks_to_too_much_is_cut_off(
    served: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "LAYER_MAX", 1 << 20)
    served.layout.image("bomb", layer(("bomb", "-", bytes(4 << 20))))
    name = served.push("bomb", "team/bomb:1")
    with pytest.raises(CommandError, match="file too large"):
        Images(tmp_path).build(name)
    assert list(tmp_path.iterdir()) == []


def test_a_pull_that_nobody_wants_any_more_is_ended(served: Registry, tmp_path: Path) -> None:
    served.layout.image("large", layer(("large", "-", os.urandom(64 << 20))))
    name = served.push("large", "team/large:1")
    stop = threading.Event()
    with ThreadPoolExecutor() as pool:
        work = pool.submit(Images(tmp_path).build, name, stop)
        limit = time.monotonic() + 60
        while not list(tmp_path.glob(".build-*/layers/*")) and time.monotonic() < limit:
            time.sleep(0.005)
        stop.set()
        with pytest.raises(GivenUp):
            work.result(120)
    assert list(tmp_path.iterdir()) == []


def test_a_registry_that_goes_away_in_the_middle_of_a_pull_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = Images(tmp_path / "images")
    with ThreadPoolExecutor() as pool:
        (tmp_path / "registry").mkdir()
        with registry(tmp_path / "registry") as made:
            monkeypatch.setenv("HOME", str(made.home))
            made.layout.image("large", layer(("large", "-", os.urandom(48 << 20))))
            work = pool.submit(images.build, made.push("large", "team/large:1"))
            limit = time.monotonic() + 60
            while not list(tmp_path.glob("images/.build-*/layers/*")) and time.monotonic() < limit:
                time.sleep(0.005)
        # Its process has been killed.
        with pytest.raises(CommandError) as caught:
            work.result(120)
    assert caught.value.retry
    assert list((tmp_path / "images").iterdir()) == []


def test_without_skopeo_the_reason_is_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PROGRAM", "skopeo-that-is-not-here")
    with pytest.raises(BoxError, match="skopeo is not installed") as caught:
        Images(tmp_path).build("127.0.0.1:1/x")
    assert caught.value.fix == "apt-get install skopeo"


@pytest.mark.parametrize("key", ["urls", "URLs", "url\u017f", "digest", "DigesT"])
@pytest.mark.parametrize("twice", [False, True])
def test_a_manifest_that_leads_astray_is_refused(
    monkeypatch: pytest.MonkeyPatch, key: str, twice: bool
) -> None:
    """Go's JSON, which skopeo reads it with, takes keys in any case, and one of several."""
    one = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{'a' * 64}"}
    value = "sha256:../../../etc/passwd" if key.lower() == "digest" else ["http://127.0.0.1/"]
    text = json.dumps({"layers": [{**one, key: value}], "config": one})
    if twice:
        text = text.replace("}]", f', "{key}": null, "x": []}}]')
    monkeypatch.setattr(fetch, "output", lambda *_, **__: text.encode())
    with pytest.raises(BadImage, match=r"names addresses|is no SHA-256 digest"):
        fetch.resolve(Name("127.0.0.1:1", "team/elsewhere", "1"), STOP)
    harmless = json.dumps({"layers": [{**one, "urls": []}], "config": one}).encode()
    monkeypatch.setattr(fetch, "output", lambda *_, **__: harmless)
    assert fetch.resolve(Name("127.0.0.1:1", "team/elsewhere", "1"), STOP).digest


def test_the_program_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not what it is started through."""
    monkeypatch.setattr(fetch, "ASK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name = Name(f"127.0.0.1:{silent.getsockname()[1]}", "team/silent", "1")
        with pytest.raises(CommandError, match=r"skopeo took longer than 0\.2 s"):
            fetch.resolve(name, STOP)
