"""Sandboxes whose root comes out of a real registry, as root and as an ordinary user."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconcilers.images.builtin import BUSYBOX
from tests.registry import Registry, needs_registry, registry
from tests.unit.images.layouts import Item, layer
from tests.vm.cases import CaseHome, case_home, replaced, undisturbed
from tests.vm.harness import TINY, until
from tests.vm.people import person, persons_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300), needs_registry]

HELLO = b"#!/bin/sh\necho hello from $(cat /app/name)\n"
LARGE = 96 << 20
TEXT = TINY + "env: {PLACE: here}\n"


def layers() -> tuple[bytes, ...]:
    """A shell, then an application, then what takes a part of it away."""
    programs: list[Item] = [("bin", "d"), ("bin/busybox", "-", BUSYBOX.read_bytes())]
    applets = ("sh", "cat", "ls", "stat", "true")
    programs += [(f"bin/{name}", "h", "bin/busybox") for name in applets]
    accounts = ("etc/passwd", "-", b"root:x:0:0::/root:/bin/sh\napp:x:70:71::/app:/bin/sh\n")
    return (
        layer(*programs, ("etc", "d"), accounts, mode=0o755),
        layer(("app", "d"), ("app/hello", "-", HELLO), ("app/old", "-"), ("data", "l", "/app"),
              mode=0o755, uid=70, gid=71),
        layer(("app/name", "-", b"layers"), ("app/.wh.old", "-"), ("dev/canary", "c")),
    )  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    with tempfile.TemporaryDirectory(prefix="boxtest-") as tmp:
        Path(tmp).chmod(0o755)  # for the user of a test, who reads his settings there
        with registry(Path(tmp)) as made:
            made.layout.image("app", *layers(), Env=["GREETING=ahoj", "PLACE=there"])
            made.push("app", "team/app:1")
            made.layout.image("large", *layers(), layer(("large", "-", os.urandom(LARGE))))
            made.push("large", "team/large:1")
            yield made


@pytest.fixture
def home(served: Registry) -> Iterator[CaseHome]:
    with case_home() as made:
        made.stop()
        made.env["HOME"] = str(served.home)
        made.start()
        yield made


def says_what_it_should(home: CaseHome, name: str) -> None:
    assert home.run(name, "/app/hello").stdout == b"hello from layers\n"
    assert home.run(name, "stat", "-c", "%u:%g %a", "/app/hello").stdout == b"70:71 755\n"
    assert home.run(name, "ls", "/app").stdout == b"hello\nname\n"
    assert home.run(name, "sh", "-c", "test -e /dev/canary", check=False).returncode == 1
    kept = home.run(name, "sh", "-c", "echo kept > /data/file && cat /data/file").stdout
    assert kept == b"kept\n"
    said = home.run(name, "sh", "-c", "echo $GREETING $PLACE").stdout
    assert said == b"ahoj here\n", "the image's environment, and over it the Boxfile's"
    assert home.run(name, "cat", "/etc/hosts").stdout.startswith(b"127.0.0.1 localhost\n")


def test_a_sandbox_starts_from_a_registrys_image(home: CaseHome, served: Registry) -> None:
    base = f"base: {served.host}/team/app:1\n"
    home.put("elm", TEXT + base)
    home.ready("elm")
    says_what_it_should(home, "elm")
    assert home.condition("elm", "ImageReady")[0] == "True"
    built = {path.name for path in (home.path / "images").iterdir()}
    assert len(built) == 2 and "refs.toml" in built
    # Another one, with a read-only root, after a restart, and without the registry.
    home.stop(signal.SIGKILL)
    home.env["HOME"] = "/nonexistent"
    home.start()
    home.put("fir", TEXT + base + "readonly: true\n")
    home.ready("fir")
    says_what_it_should(home, "fir")
    assert {path.name for path in (home.path / "images").iterdir()} == built
    for name in ("elm", "fir"):
        home.box("delete", name)
        home.nothing_left(name)


def test_an_ordinary_user_starts_from_a_registrys_image(served: Registry) -> None:
    with person() as someone, persons_home(someone) as home:
        served.admit(someone.folder / "own", someone.uid, someone.gid)
        home.start()
        home.put("ash", TEXT + f"base: {served.host}/team/app:1\n")
        assert b"ash: its image is ready" in home.box("build", "ash", "--pull").stdout
        home.ready("ash")
        says_what_it_should(home, "ash")
        [image] = (home.path / "images").glob("*/root.squashfs")
        listing = subprocess.run(["unsquashfs", "-lln", image], capture_output=True, check=True)
        assert b"drwxr-xr-x 0/0 " in listing.stdout.splitlines()[0], "the root is root's"
        home.box("delete", "ash")
        home.nothing_left("ash")
        assert b"removed 1 image" in home.box("images", "--prune").stdout


def pullers(home: CaseHome) -> list[int]:
    """Processes that fetch something into this home."""
    needle, found = f"dir:{home.path}/images/".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def begun(home: CaseHome) -> list[Path]:
    return list((home.path / "images").glob(".build-*"))


def test_a_pull_that_was_killed_leaves_nothing_and_is_made_again(
    home: CaseHome, served: Registry
) -> None:
    home.put("oak", TINY + f"base: {served.host}/team/large:1\n")
    until(lambda: pullers(home), 60, f"a pull has begun; {home.log()}")
    home.stop(signal.SIGKILL)
    until(lambda: not pullers(home), 20, "whoever fetched died with the controller")
    home.start()
    home.ready("oak")
    assert begun(home) == []
    assert home.run("oak", "/app/hello").stdout == b"hello from layers\n"


def test_a_pull_ends_with_the_sandbox_it_is_for(home: CaseHome, served: Registry) -> None:
    home.put("sage", TINY)
    home.ready("sage")
    with undisturbed(home, "sage"):
        home.put("yew", TINY + f"base: {served.host}/team/large:1\n")
        until(lambda: pullers(home), 60, f"a pull has begun; {home.log()}")
        home.remove("yew")
        home.nothing_left("yew")
        until(lambda: not (pullers(home) or begun(home)), 20, "the pull is given up")


def test_a_running_vm_goes_on_while_another_image_cannot_be_had(
    home: CaseHome, served: Registry
) -> None:
    home.put("elm", TINY)
    home.ready("elm")
    pid = home.pid("elm")
    home.put("elm", TINY + f"base: {served.host}/team/none:1\n")
    until(
        lambda: home.condition("elm", "ImageReady") == ("False", "BuildFailed"),
        60,
        f"it cannot be had; {home.report('elm')}",
    )
    assert "manifest unknown" in home.message("elm", "ImageReady")
    assert home.pid("elm") == pid
    assert home.run("elm", "echo", "well").stdout == b"well\n"
    home.put("elm", TEXT + f"base: {served.host}/team/app:1\n")
    replaced(home, "elm", pid)
    says_what_it_should(home, "elm")


def test_a_full_disk_is_named_and_leaves_nothing(served: Registry) -> None:
    with case_home(below="small") as home:
        home.stop()
        images = home.path / "images"
        images.mkdir(exist_ok=True)
        mount = f"mount -t tmpfs -o size=32m,mode=0700 none {images}"
        home.prefix = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
        home.env["HOME"] = str(served.home)
        home.start()
        home.put("oak", TINY + f"base: {served.host}/team/large:1\n")
        until(
            lambda: home.condition("oak", "ImageReady") == ("False", "BuildFailed"),
            60,
            f"it does not fit; {home.report('oak')}",
        )
        assert "no space left" in home.message("oak", "ImageReady")
        assert home.controller is not None
        seen = Path(f"/proc/{home.controller.pid}/root{images}")
        until(lambda: not os.listdir(seen), 20, lambda: f"nothing is left: {os.listdir(seen)}")
        home.put("oak", TINY)
        home.ready("oak")
        assert json.loads(home.box("get", "oak", "-o", "json").stdout)
