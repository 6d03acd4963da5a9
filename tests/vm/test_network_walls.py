"""Each wall of a sandbox's network taken away by hand: nothing passes until it is back.

The controller is stopped while a wall is missing, so that what holds then is the construction and
not its speed. A stream of knocks from the guest goes on all the time; the canary's log, with its
times, says when any of them got through.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator

import pytest

from tests.vm.harness import until
from tests.vm.netlab import BOXFILE, PUBLIC4, PUBLIC6, NetHome, ip, net_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

Sabotage = Callable[[NetHome], None]


@pytest.fixture(scope="module")
def home() -> Iterator[NetHome]:
    with net_home() as made:
        made.put("oak", BOXFILE)
        made.ready("oak")
        made.give_dialer("oak")
        yield made


@pytest.fixture
def knocking(home: NetHome) -> Iterator[None]:
    """The guest knocks at the world four times a second, over both families."""
    home.ready("oak")
    loop = (
        "while :; do printf 'udp %s 443\\ntcp %s 443\\nudp %s 443\\n' "
        f"{PUBLIC4} {PUBLIC4} {PUBLIC6} | /tmp/dial 150 >/dev/null; done & echo $!"
    )
    if not home.run("oak", "sh", "-c", "test -x /tmp/dial; echo $?").stdout.startswith(b"0"):
        home.give_dialer("oak")  # the VM was replaced
    home.run("oak", "sh", "-c", "pkill -f 'while :' 2>/dev/null; true")
    home.run("oak", "sh", "-c", f"({loop}) </dev/null >/tmp/knocking 2>&1")
    until(lambda: passing(home, time.time() - 1), 15, "the knocks arrive at first")
    yield


def passing(home: NetHome, since: float) -> bool:
    """Whether both families got through since then."""
    heard = home.lab.heard("world", since)
    return any(PUBLIC4 in line for line in heard) and any(PUBLIC6 in line for line in heard)


def now() -> str:
    """This moment as drift records write it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def put_back(home: NetHome, field: str, since: str) -> None:
    """Wait until drift that was found since then has been corrected."""

    def corrected() -> bool:
        return any(
            each["field"].startswith(field)
            and each["first_seen"].replace("Z", "+00:00") >= since
            and each.get("corrected")
            for each in home.drift("oak")
        )

    try:
        until(corrected, 60, f"drift of {field} is corrected")
    except AssertionError as error:
        raise AssertionError(f"{error}: {home.drift('oak')}") from None


def flush_middle(home: NetHome) -> None:
    home.lab.run(home.middle("oak"), "nft", "flush", "ruleset")


def delete_middle_rules(home: NetHome) -> None:
    home.lab.run(home.middle("oak"), "nft", "flush", "table", "inet", "box")


def flush_host(home: NetHome) -> None:
    home.lab.run(home.lab.host, "nft", "flush", "table", "inet", home.table("oak"))


def delete_host(home: NetHome) -> None:
    home.lab.run(home.lab.host, "nft", "delete", "table", "inet", home.table("oak"))


def device(home: NetHome, kind: str) -> str:
    return home.vmm_space("oak").replace("bxv", f"bx{kind}", 1)


def delete_link(kind: str) -> Sabotage:
    def act(home: NetHome) -> None:
        space = {"h": home.lab.host, "u": home.middle("oak"), "g": home.middle("oak")}.get(
            kind, home.vmm_space("oak")
        )
        ip("link", "delete", device(home, kind), namespace=space)

    return act


def link_down(kind: str) -> Sabotage:
    def act(home: NetHome) -> None:
        space = home.middle("oak") if kind in "gu" else home.vmm_space("oak")
        ip("link", "set", device(home, kind), "down", namespace=space)

    return act


def unpin_middle(home: NetHome) -> None:
    """The namespace with the rules goes, and with it every link that leads there."""
    ip("netns", "delete", home.middle("oak"))


def lose_routes(home: NetHome) -> None:
    for family in ("-4", "-6"):
        ip(family, "route", "flush", "table", "100", namespace=home.middle("oak"))


def lose_host_routes(home: NetHome) -> None:
    ip("route", "flush", "dev", device(home, "h"), namespace=home.lab.host)
    ip("-6", "route", "flush", "dev", device(home, "h"), namespace=home.lab.host)


def lose_mark_rule(home: NetHome) -> None:
    for family in ("-4", "-6"):
        ip(family, "rule", "del", "pref", "97", namespace=home.lab.host)


CLOSED: dict[str, tuple[Sabotage, str]] = {
    "ruleset of the middle flushed": (flush_middle, "network.rules"),
    "rules of the middle flushed": (delete_middle_rules, "network.rules"),
    "table of the host flushed": (flush_host, "network.host rules"),
    "table of the host deleted": (delete_host, "network.host rules"),
    "uplink deleted on the host": (delete_link("h"), "network"),
    "uplink deleted in the middle": (delete_link("u"), "network"),
    "guest's side deleted": (delete_link("g"), "network"),
    "veth on the bridge deleted": (delete_link("i"), "network"),
    "bridge deleted": (delete_link("b"), "network"),
    "tap deleted": (delete_link("t"), "network"),
    "guest's side down": (link_down("g"), "network.links"),
    "bridge down": (link_down("b"), "network.links"),
    "middle namespace gone": (unpin_middle, "network"),
    "routes of the middle lost": (lose_routes, "network.routes"),
    "way of marked packets lost": (lose_mark_rule, "network.policy routing"),
}


@pytest.mark.parametrize("wall", CLOSED)
@pytest.mark.usefixtures("knocking")
def test_nothing_passes_while_a_wall_is_missing_and_then_it_is_mended(
    home: NetHome, wall: str
) -> None:
    sabotage, field = CLOSED[wall]
    moment = now()
    with home.standing_still():
        sabotage(home)
        time.sleep(0.7)  # what was on its way, also to a canary that a busy host lets wait
        since = time.time()
        time.sleep(1.5)
        assert home.lab.heard("world", since) == []
    home.look_again()
    put_back(home, field, moment)
    home.ready("oak")
    if not home.run("oak", "sh", "-c", "test -x /tmp/dial; echo $?").stdout.startswith(b"0"):
        home.give_dialer("oak")
    until(
        lambda: (
            home.knock("oak", [f"tcp {PUBLIC4} 443", f"udp {PUBLIC6} 443"])
            == {f"tcp {PUBLIC4} 443", f"udp {PUBLIC6} 443"}
        ),
        20,
        "it passes again",
    )


def added_rule(home: NetHome) -> None:
    """Somebody lets everything out, above all else."""
    home.lab.run(
        home.middle("oak"), "nft", "insert", "rule", "inet", "box", "guest",
        "meta", "mark", "set", "0x2b0", "accept",
    )  # fmt: skip


def added_route(home: NetHome) -> None:
    """A way out for packets without the mark."""
    gateway = home.report("oak")["network"]["gateway4"]
    last = int(gateway.rsplit(".", 1)[1]) + 4
    via = f"{gateway.rsplit('.', 1)[0]}.{last}"
    ip("route", "add", "default", "via", via, "dev", device(home, "u"), "onlink",
       namespace=home.middle("oak"))  # fmt: skip


def no_black_hole(home: NetHome) -> None:
    for family in ("-4", "-6"):
        ip(family, "rule", "del", "pref", "98", namespace=home.lab.host)


def redirects_believed(home: NetHome) -> None:
    name = f"net.ipv4.conf.{device(home, 'h')}.accept_redirects=1"
    home.lab.run(home.lab.host, "sysctl", "-qw", name)


def ipv6_in_the_vmm(home: NetHome) -> None:
    home.lab.run(home.vmm_space("oak"), "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=0")


def extra_address(home: NetHome) -> None:
    ip("addr", "add", "192.0.2.77/32", "dev", device(home, "u"), namespace=home.middle("oak"))


def foreign_link(home: NetHome) -> None:
    ip("link", "add", "sit0", "type", "bridge", namespace=home.middle("oak"))


def foreign_link_of_the_vmm(home: NetHome) -> None:
    """Named like a device that the kernel itself puts there, which would not count."""
    ip("link", "add", "sit0", "type", "bridge", namespace=home.vmm_space("oak"))


@pytest.mark.parametrize(
    ("sabotage", "field"),
    [
        (foreign_link, "network.links"),
        (foreign_link_of_the_vmm, "network.links"),
        (added_rule, "network.rules"),
        (added_route, "network.routes"),
        (no_black_hole, "network.policy routing"),
        (redirects_believed, "network.settings"),
        (ipv6_in_the_vmm, "network.settings"),
        (extra_address, "network.addresses"),
        # no wall, but answers find no way back
        (lose_host_routes, "network.routes"),
    ],
)
def test_a_change_by_hand_is_found_and_put_back_in_place(
    home: NetHome, sabotage: Sabotage, field: str
) -> None:
    home.ready("oak")
    pid = home.pid("oak")
    moment = now()
    sabotage(home)
    home.look_again()
    put_back(home, field, moment)
    home.ready("oak")
    assert home.pid("oak") == pid


def test_a_foreign_device_beside_the_tap_goes_with_the_vm_that_had_it(home: NetHome) -> None:
    home.ready("oak")
    pid, space = home.pid("oak"), home.vmm_space("oak")
    ip("link", "add", "extra0", "type", "bridge", namespace=space)
    home.look_again()
    until(lambda: home.pid("oak") not in (0, pid), 60, "another VMM runs")
    home.ready("oak")
    assert "extra0" not in ip("link", namespace=space)
