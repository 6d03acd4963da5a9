"""A Debian with packages and more, built through its own apt inside microVMs, without an uplink."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.debian import Debian, debian
from tests.pages import boxfile_in
from tests.vm.building import failed, nothing_at_work, whole_images
from tests.vm.cases import CaseHome
from tests.vm.netlab import BOXFILE, NetHome, net_home
from tests.vm.people import person
from tests.vm.usernet import UserNetHome, user_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(700)]

SECONDS = 300.0  # python3 took 97 s beside another VM
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
def users(home: NetHome) -> Iterator[UserNetHome]:
    with person() as someone, user_home(someone, home.lab) as its:
        its.start()
        yield its


@pytest.fixture
def used(request: pytest.FixtureRequest) -> CaseHome:
    """A home of root and one of an ordinary user, in the same network."""
    found: CaseHome = request.getfixturevalue({"root": "home", "user": "users"}[request.param])
    return found


@pytest.fixture(scope="module")
def base(home: NetHome, made: Debian) -> str:
    return f"{PLAIN}base: {made.base(home.lab.folder)}\n"


def built(home: CaseHome) -> set[str]:
    """The images of steps. The base's stays whatever becomes of a build on it."""
    return {digest for digest, is_built in whole_images(home).items() if is_built}


@pytest.mark.parametrize(
    ("used", "package"),
    [
        ("root", "python3"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (("root", "hello"), ("user", "python3"), ("user", "hello"))
        ),
    ],
    indirect=["used"],
)
def test_what_apt_installs_and_the_page_shows_is_there(
    used: CaseHome, base: str, package: str
) -> None:
    home, name = used, f"oak-{package}"
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
    nothing_at_work(home)


@pytest.mark.parametrize(
    "used", [pytest.param("root", marks=pytest.mark.long), "user"], indirect=True
)
def test_a_package_that_is_not_there_is_named_and_leaves_no_image(
    used: CaseHome, base: str
) -> None:
    home, had = used, built(used)
    home.put("ash", base + "packages: [no-such-thing]\n")
    said = failed(home, "ash")
    assert "Unable to locate package no-such-thing" in said
    assert "apt-get did not install the packages" in said
    nothing_at_work(home)
    assert built(home) == had
    assert not (home.path / "disks/ash").exists()
    home.put("ash", base + "packages: [hello]\n")
    home.ready("ash", SECONDS)
    assert home.run("ash", "hello").stdout == b"Hello, world!\n"
    nothing_at_work(home)
    home.remove("ash")
