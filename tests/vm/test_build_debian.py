"""A Debian with packages and more, built through its own apt inside microVMs, without an uplink."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.debian import Debian, debian
from tests.pages import boxfile_in
from tests.vm.cases import CaseHome
from tests.vm.harness import until
from tests.vm.netlab import BOXFILE, NetHome, built_lab, net_home
from tests.vm.people import person
from tests.vm.usernet import user_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(400)]

SECONDS = 300.0  # python3 takes 45 s of an idle host's emulation
PLAIN = BOXFILE.replace("network: bridge\n", "").replace("ram_mib: 192", "ram_mib: 512")
# What the page shows, without the base, which needs a registry, and what it says comes of it.
RECIPE = boxfile_in("recipe.md", "tool").replace("base: debian:12\n", "")
PLACES = ("/opt/tool/greet.py", "/opt/tool/key", "/opt/tool/whose", "/home/ada")
GREETING = b"hello from 1815\n"
OF = {
    "python3": RECIPE,
    "hello": RECIPE.replace("[python3]", "[hello]").replace(
        "python3 -m compileall -q /opt/tool", "hello"
    ),
}
PROGRAM = {
    "python3": ["python3", "-c", "import ssl, sqlite3; print('Hello, world!')"],
    "hello": ["hello"],
}


@pytest.fixture(scope="module")
def made() -> Debian:
    return debian()


@pytest.fixture(scope="module")
def home(made: Debian) -> Iterator[NetHome]:
    with net_home() as home, made.serve(home.lab.enter(home.lab.world)):
        yield home


@pytest.fixture(scope="module")
def base(home: NetHome, made: Debian) -> str:
    return f"{PLAIN}base: {made.base(home.lab.folder)}\n"


def images(home: CaseHome) -> set[str]:
    return {path.parent.name for path in (home.path / "images").glob("*/root.squashfs")}


@pytest.mark.parametrize("package", ["hello", pytest.param("python3", marks=pytest.mark.long)])
def test_what_apt_installs_and_the_page_shows_is_there(
    home: NetHome, base: str, package: str
) -> None:
    name = f"oak-{package}"
    home.put(name, base + OF[package])
    home.ready(name, SECONDS)
    assert home.run(name, *PROGRAM[package]).stdout == b"Hello, world!\n"
    if package == "python3":
        as_ada = ["exec", name, "--user", "ada", "--", "python3", "/opt/tool/main.py"]
        assert home.box(*as_ada).stdout == GREETING
    facts = home.run(name, "stat", "-c", "%U:%G %a %n", *PLACES).stdout.decode()
    assert facts.splitlines() == [
        "ada:ada 644 /opt/tool/greet.py",
        "ada:root 600 /opt/tool/key",
        "root:root 444 /opt/tool/whose",
        "ada:ada 700 /home/ada",
    ]
    assert home.run(name, "cat", "/opt/tool/key").stdout == b"\0\1\2\xff"
    # The sandbox itself has no network, and nothing of the build's is in its image.
    assert home.run(name, "ls", "/sys/class/net").stdout == b"lo\n"
    assert home.run(name, "cat", "/etc/resolv.conf").stdout == b""
    assert home.run(name, "ls", "-A", "/var/lib/apt/lists").stdout == b""


@pytest.mark.long
@pytest.mark.parametrize("package", ["hello", "python3"])
def test_an_ordinary_user_builds_through_apt(made: Debian, package: str) -> None:
    with (
        built_lab() as net,
        made.serve(net.enter(net.world)),
        person() as someone,
        user_home(someone, net) as home,
    ):
        home.start()
        base = made.base(someone.folder)
        home.put("elm", f"{PLAIN}base: {base}\n{OF[package]}")
        home.ready("elm", SECONDS)
        assert home.run("elm", *PROGRAM[package]).stdout == b"Hello, world!\n"
        assert home.run("elm", "stat", "-c", "%U %a", "/opt/tool/key").stdout == b"ada 600\n"


@pytest.mark.long
def test_a_package_that_is_not_there_is_named_and_leaves_no_image(home: NetHome, base: str) -> None:
    had = images(home)
    home.put("ash", base + "packages: [no-such-thing]\n")
    until(
        lambda: home.condition("ash", "ImageReady") == ("False", "BuildFailed"),
        90,
        f"it cannot be built; {home.report('ash')}",
    )
    assert "Unable to locate package no-such-thing" in home.message("ash", "ImageReady")
    assert images(home) == had
    assert not (home.path / "disks/ash").exists()
    home.put("ash", base + "packages: [hello]\n")
    home.ready("ash", SECONDS)
    assert home.run("ash", "hello").stdout == b"Hello, world!\n"
