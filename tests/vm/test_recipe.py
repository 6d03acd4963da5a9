"""The scripts of a build, run by the shells they may meet: busybox, dash and bash.

Here they run through `box exec` in sandboxes that are thrown away; what a build makes of them is
the business of the tests of builds, which have a Debian, too. So the Debian here is for --all.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from specs.boxfile import Boxfile
from specs.recipe import Step, steps
from tests.debian import debian
from tests.vm.harness import TINY
from tests.vm.netlab import BOXFILE, NetHome, net_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

ROOMY = BOXFILE.replace("ram_mib: 192", "ram_mib: 512")
IN_DEBIAN = pytest.mark.long
GUESTS = ["busybox", pytest.param("debian", marks=IN_DEBIAN)]


@pytest.fixture(scope="module")
def home() -> Iterator[NetHome]:
    with net_home() as home:
        home.put("busybox", TINY)
        home.ready("busybox")
        yield home


@pytest.fixture(scope="module")
def with_debian(home: NetHome) -> Iterator[None]:
    made = debian()
    with made.serve(home.lab.enter(home.lab.world)):
        home.put("debian", f"{ROOMY}base: {made.base(home.lab.folder)}\n")
        home.ready("debian")
        yield


@pytest.fixture(autouse=True)
def where_it_is_wanted(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("long") is not None:
        request.getfixturevalue("with_debian")


def step(**fields: Any) -> Step:
    (found,) = steps(Boxfile(name="fern", **fields))
    return found


def run(
    home: NetHome, name: str, wanted: Step, shell: Sequence[str] = ("/bin/sh",)
) -> subprocess.CompletedProcess[bytes]:
    argv = [*shell, *wanted.argv[1:]]
    return home.box("exec", name, "-i", "--", *argv, data=wanted.stdin, check=False)


def works(home: NetHome, name: str, wanted: Step, shell: Sequence[str] = ("/bin/sh",)) -> str:
    done = run(home, name, wanted, shell)
    assert done.returncode == 0, done
    return done.stdout.decode()


def fails(home: NetHome, name: str, wanted: Step) -> str:
    done = run(home, name, wanted)
    assert done.returncode == 1, done
    return done.stderr.decode()


def shell(home: NetHome, name: str, line: str) -> str:
    return home.run(name, "sh", "-c", line).stdout.decode()


# -- packages


@IN_DEBIAN
def test_a_package_is_installed_and_its_lists_and_caches_are_not_kept(home: NetHome) -> None:
    said = works(home, "debian", step(packages=["hello"], pkgmgr="apt"))
    assert "Setting up hello" in said
    assert shell(home, "debian", "hello") == "Hello, world!\n"
    left = "find /var/lib/apt/lists /var/cache/apt /usr/sbin/policy-rc.d -type f"
    assert shell(home, "debian", f"{left} ! -name lock 2>/dev/null; true") == ""
    # It is found without being named, and what is there already is no failure.
    assert "already the newest version" in works(home, "debian", step(packages=["hello"]))


@IN_DEBIAN
def test_what_cannot_be_installed_is_named_with_a_fix(home: NetHome) -> None:
    unknown = fails(home, "debian", step(packages=["hello", "no-such-thing"]))
    assert "Unable to locate package no-such-thing" in unknown
    assert "box: apt-get did not install the packages\n  fix: " in unknown
    other = fails(home, "debian", step(packages=["hello"], pkgmgr="dnf"))
    assert "box: pkgmgr is dnf, and this image has no dnf\n  fix: remove the line" in other
    assert "what is here is apt" in other


def test_an_image_without_a_package_manager_is_named_with_a_fix(home: NetHome) -> None:
    none = fails(home, "busybox", step(packages=["hello"]))
    assert "box: this image has no package manager: none of apk, apt and dnf\n  fix: " in none
    other = fails(home, "busybox", step(packages=["hello"], pkgmgr="apk"))
    assert (
        "box: pkgmgr is apk, and this image has no apk\n  fix: remove the line pkgmgr, or" in other
    )


@IN_DEBIAN
def test_a_repository_that_does_not_answer_is_a_failure(home: NetHome) -> None:
    sources = "/etc/apt/sources.list.d/dead.list"
    shell(home, "debian", f"echo 'deb [trusted=yes] http://198.51.100.10:9/ x main' >{sources}")
    try:
        said = fails(home, "debian", step(packages=["hello"]))
    finally:
        shell(home, "debian", f"rm {sources}")
    assert "box: apt-get cannot read the lists of its repositories\n  fix: " in said


# -- users and files


USERS: list[dict[str, Any]] = [
    {"name": "ada", "uid": 1815, "gecos": "Ada 'A' \"L\" $(id) \\n", "groups": ["wheel", "kvm"]},
    {"name": "eve-2", "shell": "/bin/false", "homedir": "/srv/deep/eve", "primary_group": "kvm"},
    {"name": "_svc", "system": True},
    {"name": "bob", "no_create_home": True},
]
ACCOUNTS = "/etc/passwd /etc/group $(ls /etc/shadow /etc/gshadow 2>/dev/null)"
ODD = "/opt/a b/$(reboot)'\"*;é\\n/-x"
EXACT = "\ttab\r\n\\n $HOME `id` ' \" é\n\n  no line break at the end"
LOOK = f"""
cat /etc/passwd
echo --
id -Gn ada; id -u eve-2; id -gn eve-2
stat -c '%a %u:%g %n' /opt '/opt/a b' {shlex.quote(ODD)}
stat -c '%a %U:%G %n' /home/* /srv/deep/eve
stat -c '%a %u:%g %s' /opt/bytes /opt/none /top
ls -A /tmp
echo --
cat /opt/log; stat -c '%U %a' /opt/log
echo --
cat /etc/passwd /etc/group
"""
KVM = "sed -n 's/^kvm:x:\\([0-9]*\\):.*/\\1/p' /etc/group"
FILES: list[dict[str, Any]] = [
    {"path": ODD, "content": EXACT, "owner": "ada:kvm", "permissions": "4750"},
    {"path": "/opt/bytes", "content": "AAEC/wpAAA==", "encoding": "b64", "owner": "7:8"},
    {"path": "/opt/none"},
    {"path": "/opt/log", "content": "end\nuser\n", "permissions": "0600", "owner": "bob"},
    {"path": "/opt/log", "content": "file\n", "append": True},
    {"path": "/top", "content": "x"},
]


@pytest.mark.parametrize(
    ("name", "with_shell"),
    [
        pytest.param("busybox", ["/bin/sh"], id="busybox"),
        pytest.param("debian", ["/bin/sh"], id="dash", marks=IN_DEBIAN),
        pytest.param("debian", ["/bin/bash"], id="bash", marks=IN_DEBIAN),
    ],
)
def test_users_and_files_are_there_to_the_byte(
    home: NetHome, name: str, with_shell: Sequence[str]
) -> None:
    shell(home, name, f"mkdir -p /root/kept && cp -a {ACCOUNTS} /root/kept/")
    wanted = step(blueprint={"users": USERS, "write_files": FILES})
    assert works(home, name, wanted, with_shell) == ""
    passwd, facts, log, after = shell(home, name, LOOK).split("--\n")
    assert "ada:x:1815:1815:Ada 'A' \"L\" $(id) \\n:/home/ada:/bin/sh\n" in passwd
    assert ":/srv/deep/eve:/bin/false\n" in passwd
    assert facts.splitlines() == [
        "ada wheel kvm",
        "1000",
        "kvm",
        "755 0:0 /opt",
        "755 0:0 /opt/a b",
        f"4750 1815:{shell(home, name, KVM).strip()} {ODD}",
        "700 ada:ada /home/ada",
        "700 eve-2:kvm /srv/deep/eve",
        "644 7:8 7",
        "644 0:0 0",
        "644 0:0 1",
    ]
    assert log == "end\nuser\nfile\nbob 600\n"
    uid = next(line.split(":")[2] for line in passwd.splitlines() if line.startswith("_svc:"))
    assert 100 <= int(uid) < 1000
    assert home.run(name, "cat", ODD).stdout == EXACT.encode()
    assert home.run(name, "cat", "/opt/bytes").stdout == b"\0\1\2\xff\n@\0"
    # A second time it changes nothing: what is there keeps what it is.
    works(home, name, step(blueprint={"users": USERS}), with_shell)
    again = "cat /etc/passwd /etc/group; cp -a /root/kept/* /etc/"
    gone = "rm -r /root/kept /opt/* /srv/* /home/* /top"
    assert shell(home, name, f"{again}; {gone}") == after


@pytest.mark.parametrize(
    ("blueprint", "words"),
    [
        ({"users": [{"name": "root", "uid": 5}]}, "a user root already, whose uid is 0 and not 5"),
        ({"users": [{"name": "new", "uid": 65534}]}, "uid 65534, for new, belongs to another"),
        ({"write_files": [{"path": "/x", "owner": "nobody-x"}]}, "/x: the image knows no owner"),
        ({"write_files": [{"path": "/etc", "content": "x"}]}, "/etc is a folder of the image"),
    ],
)
def test_what_the_image_contradicts_is_named_with_a_fix(
    home: NetHome, blueprint: dict[str, Any], words: str
) -> None:
    said = fails(home, "busybox", step(blueprint=blueprint))
    assert words in said
    assert "\n  fix: " in said


@pytest.mark.parametrize("name", GUESTS)
def test_lines_stop_at_the_first_that_fails(home: NetHome, name: str) -> None:
    done = run(home, name, step(run=["echo one\nfalse\necho two"]))
    assert (done.returncode, done.stdout) == (1, b"one\n")
    wanted = step(blueprint={"runcmd": ["A='x y'", ["printf", "%s|", "a b", "$A", "'\"\n"], "pwd"]})
    assert works(home, name, wanted).startswith("a b|$A|'\"\n|/")
