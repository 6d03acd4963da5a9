"""Images built by steps inside microVMs: kept, shared, refused, thrown away."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.vm.building import (
    another_image,
    failed,
    image_of,
    message_of,
    nothing_at_work,
    steps,
    whole_images,
)
from tests.vm.cases import CaseHome, home_of
from tests.vm.harness import TINY, Home, until
from tests.vm.netlab import HOST, PUBLIC4, net_home
from tests.vm.people import person
from tests.vm.test_user_network import lab  # noqa: F401  # a fixture
from tests.vm.usernet import user_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def home() -> Iterator[CaseHome]:
    config = "build_step_seconds = 20\nbuild_disk_mib = 64\n"
    with home_of(CaseHome, config=config) as made:
        yield made


def test_steps_make_an_image_that_is_shared_and_goes_on_from_what_is_kept(home: Home) -> None:
    greeting = (
        'echo "$GREETING" > /etc/greeting',
        "chown 7:8 /etc/greeting && chmod 4711 /etc/greeting && ln /etc/greeting /etc/same",
    )
    text = TINY + "env: {GREETING: good morning}\n" + steps(*greeting)
    home.put("oak", text)
    first = image_of(home, "oak")
    assert home.run("oak", "cat", "/etc/greeting").stdout == b"good morning\n"
    facts = home.run("oak", "stat", "-c", "%a %u %g %h", "/etc/greeting", "/etc/same").stdout
    assert facts == b"4711 7 8 2\n" * 2
    nothing_at_work(home)
    # The same recipe is the same image; one that begins like it runs only what is new.
    home.put("elm", text)
    assert image_of(home, "elm") == first
    home.remove("oak")
    home.put("elm", text + "  - rm /etc/same && date +%s%N > /etc/when\n")
    assert another_image(home, "elm", first) != first
    when = home.run("elm", "cat", "/etc/when").stdout
    assert home.run("elm", "ls", "/etc/same", check=False).returncode != 0
    kept = sorted(os.listdir(home.path / "builds"))
    assert len(kept) == 4 and "empty-64" in kept
    # An image that was lost is made of the steps that are kept, none of which runs again.
    for digest, is_built in whole_images(home).items():
        if is_built:
            shutil.rmtree(home.path / "images" / digest)
    home.box("build", "elm")
    assert home.run("elm", "cat", "/etc/when").stdout == when
    assert sorted(os.listdir(home.path / "builds")) == kept
    nothing_at_work(home)


WRONG = {
    "ash": ("echo this went wrong; exit 3", "it ended with status 3: this went wrong"),
    "birch": ("echo last words; sleep 1; poweroff -f; sleep 100", "last words"),
    "cedar": ("while :; do sleep 100 & done", ""),
    "dogwood": ("sleep 1000 & sleep 1000", "it took longer than 20 s"),
    "elder": ("dd if=/dev/zero of=/file bs=1M", "No space left on device"),
}


def test_a_step_that_goes_wrong_says_how_and_leaves_nothing(home: Home) -> None:
    before = sorted(os.listdir(home.path / "builds")) if (home.path / "builds").exists() else []
    for name, (step, _) in WRONG.items():
        home.put(name, TINY + steps(step))
    for name, (_, said) in WRONG.items():
        assert said in failed(home, name)
    nothing_at_work(home)
    assert {*os.listdir(home.path / "builds")} <= {*before, "empty-64"}
    home.box("delete", *WRONG)  # files that vanish all at once would be held
    for name in WRONG:
        home.nothing_left(name)


def test_what_a_step_leaves_running_ends_with_it_and_lies_on_the_disk_are_no_image(
    home: Home,
) -> None:
    """The last step writes on the disk for the archive, which it finds by its number."""
    find = "d=$(grep -l transfer /sys/block/*/serial | cut -d/ -f4)"
    lie = f"{find}; mknod /x b $(tr : ' ' < /sys/block/$d/dev)"
    write = "dd if=/dev/urandom of=/x bs=64k count=64 && rm /x"
    loop = "(while :; do date > /etc/now; done) & echo done > /etc/done; sleep 1"
    home.put("fir", TINY + steps(loop, f"{lie}; {write}"))
    image_of(home, "fir")
    assert home.run("fir", "cat", "/etc/done").stdout == b"done\n"
    nothing_at_work(home)
    home.remove("fir")


def test_a_full_disk_of_the_host_ends_a_build(small_home: Home) -> None:
    small_home.put("oak", TINY + steps("dd if=/dev/urandom of=/file bs=1M count=64"))
    assert "disk" in failed(small_home, "oak")
    nothing_at_work(small_home)

    def room() -> bool:
        facts = os.statvfs(small_home.path)
        return facts.f_bavail * facts.f_frsize > 8 << 20

    # It is tried again and again, ever less often: all is free in between.
    kept = small_home.path / "builds"
    until(lambda: os.listdir(kept) == ["empty-16384"] and room(), 60, "nothing of it is kept")


# The nc of a guest may wait for the end of a connection for ever.
TRY = "(timeout 20 nc -w 5 {address} 443 < /dev/null > /etc/{name}) || true"
REACH = steps(
    TRY.format(address=PUBLIC4, name="public"),
    " ; ".join(TRY.format(address=each, name="host") for each in HOST[:1]),
    TRY.format(address="10.9.9.9", name="private"),
    "ls /sys/class/net > /etc/devices; cat /etc/resolv.conf > /etc/servers",
)


def heard_of(home: Home, name: str) -> dict[str, str]:
    names = ("public", "host", "private", "devices", "servers", "resolv.conf")
    command = "for each in $0 $@; do echo = $each; cat /etc/$each; done"
    said = home.run(name, "sh", "-c", command, *names).stdout.decode()
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1] for part in said.split("= ")[1:]}


def test_steps_reach_what_is_public_and_nothing_else_whatever_the_sandbox_may() -> None:
    with net_home() as home:
        home.put("oak", TINY + REACH)
        first = image_of(home, "oak")
        found = heard_of(home, "oak")
        assert (found["public"], found["host"], found["private"]) == (f"{home.lab.word}\n", "", "")
        assert found["devices"].split() == ["eth0", "lo"] and "nameserver" in found["servers"]
        assert found["resolv.conf"] == "", "it is the build's, not the image's"
        assert home.run("oak", "ls", "/sys/class/net").stdout == b"lo\n"
        nothing_at_work(home)
        until(lambda: home.host_shows() == [], 20, lambda: f"nothing is left: {home.host_shows()}")
        began = time.time()
        (home.path / "policy.toml").write_text("build_network = false\n")
        home.look_again()
        home.put("oak", TINY + REACH + "  - 'true'\n" + "env: {A: other}\n")
        another_image(home, "oak", first)
        assert heard_of(home, "oak")["devices"].split() == ["lo"]
        assert home.lab.heard("world", began) == []


def test_an_ordinary_user_builds_in_the_same_way(lab) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    with person() as someone, user_home(someone, lab) as home:
        home.start()
        home.put("elm", TINY + REACH)
        image_of(home, "elm")
        found = heard_of(home, "elm")
        assert (found["public"], found["host"], found["private"]) == (f"{lab.word}\n", "", "")
        assert home.run("elm", "stat", "-c", "%u", "/etc/public", "/bin").stdout == b"0\n0\n"
        nothing_at_work(home)
        assert message_of(home, "elm", "Confined").endswith("readings as wanted")
