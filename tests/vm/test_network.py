"""A bridged sandbox reaches what its Boxfile says, and nothing else (cases N1 and N4).

The controller runs in a network namespace of its own. A door that must stay shut counts only when
the same canary answers the same program from beside the sandbox, without the wall.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.vm.harness import until
from tests.vm.netlab import (
    BOXFILE,
    GATEWAY4,
    GATEWAY6,
    HOST,
    LAN4,
    OTHER4,
    OTHER6,
    PRIVATE,
    PUBLIC4,
    PUBLIC6,
    RESOLVER,
    NetHome,
    doors,
    net_home,
)

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def home() -> Iterator[NetHome]:
    with net_home() as made:
        made.put("oak", BOXFILE)
        made.ready("oak")
        made.give_dialer("oak")
        # The loopback's canary would say so if anything came to it in a way nobody thought of.
        made.lab.canary(made.lab.host, "loopback4", "127.0.0.1", [9999])
        made.lab.canary(made.lab.host, "loopback6", "::1", [9999])
        yield made


def egress(home: NetHome, value: str) -> None:
    """Put it in force on the running VM."""
    pid = home.pid("oak")
    home.put("oak", f"{BOXFILE}egress: {value}\n")
    wanted = value if value in ("none", "all") else value[1:-1].replace('"', "") or "none"
    until(lambda: home.shown("oak").get("egress") == wanted, 30, f"egress is {value}")
    home.ready("oak")
    assert home.pid("oak") == pid  # in place


def gateways(home: NetHome) -> tuple[str, str]:
    shown = home.shown("oak")
    return shown["gateway4"], shown["gateway6"].split(" ")[0]


def test_egress_all_reaches_the_world_over_both_families(home: NetHome) -> None:
    egress(home, "all")
    wanted = set(doors((PUBLIC4, PUBLIC6, OTHER4, OTHER6)))
    home.knocks("oak", wanted, wanted)


def test_egress_all_reaches_nothing_private_and_nothing_of_the_host(home: NetHome) -> None:
    """N1, allow-all: the LAN address, the gateway of the host, metadata, private ranges."""
    egress(home, "all")
    lab, attacked = home.lab, doors((*HOST, *PRIVATE))
    assert lab.knock(attacked) == set(attacked)
    began = time.time()
    assert home.knock("oak", attacked) == set()
    ours = {home.shown("oak")["address4"], home.shown("oak")["address6"]}
    heard = [line for label in ("host", "world") for line in lab.heard(label, began)]
    assert heard == [] and ours
    counts = home.dropped("oak")
    assert counts["host"] >= len(doors(HOST)) and counts["private"] >= len(doors(PRIVATE))


def test_gateway_answers_names_and_nothing_else(home: NetHome) -> None:
    """N1: the DNS address serves port 53 only, and no address of the path leads to the host."""
    egress(home, "all")
    four, six = gateways(home)
    began = time.time()
    asked = doors((four, six), (53, 80, 443, 8443, 9999))
    home.knocks("oak", asked, {f"tcp {four} 53", f"udp {four} 53"})
    heard = home.lab.heard("world", began)
    assert {line.split()[0] for line in heard} == {"tcp", "udp"}
    assert all(line.split()[1:3] == [RESOLVER, "53"] for line in heard)
    assert home.lab.heard("host", began) == []


def test_loopback_of_the_host_is_not_reached_by_any_name(home: NetHome) -> None:
    egress(home, "all")
    lab = home.lab
    inside = ["tcp 127.0.0.1 9999", "tcp ::1 9999"]
    assert lab.knock(inside, lab.host) == set(inside)
    began = time.time()
    tried = (*gateways(home), *HOST, "127.0.0.1", "::1", "0.0.0.0", "127.0.0.53", "169.254.1.2")
    assert home.knock("oak", doors((*tried, "10.0.2.2"), (9999, 443))) == set()
    for label in ("loopback4", "loopback6", "host"):
        assert lab.heard(label, began) == []


def test_names_are_resolved_through_the_gateway_by_the_guests_own_file(home: NetHome) -> None:
    egress(home, "all")
    four, _ = gateways(home)
    assert home.run("oak", "cat", "/etc/resolv.conf").stdout == f"nameserver {four}\n".encode()
    assert RESOLVER in home.shown("oak")["resolver"]


@pytest.mark.parametrize("value", ["none", "[]"])
def test_egress_none_reaches_nothing_at_all(home: NetHome, value: str) -> None:
    """N1, egress empty."""
    egress(home, value)
    lab = home.lab
    attacked = doors((*HOST, *PRIVATE, PUBLIC4, PUBLIC6, RESOLVER, GATEWAY4, GATEWAY6))
    assert lab.knock(attacked) == set(attacked)
    began = time.time()
    more = doors((*gateways(home), "0.0.0.0"))
    assert home.knock("oak", [*attacked, *more]) == set()
    assert lab.heard("host", began) == [] and lab.heard("world", began) == []
    assert home.dropped("oak")["egress"] > 0


def test_a_list_reaches_what_it_names_in_ipv4(home: NetHome) -> None:
    egress(home, f'["{PUBLIC4}:443", "198.51.100.0/28:80"]')
    lab = home.lab
    asked = doors((PUBLIC4, PUBLIC6, OTHER4, RESOLVER), (53, 80, 443))
    assert lab.knock(asked) == set(asked)
    home.knocks("oak", asked, set(doors((PUBLIC4,), (80, 443))))


def test_no_ipv6_goes_past_a_list_of_ipv4(home: NetHome) -> None:
    """N4: a canary dialled directly, over UDP, link-local, and after a forged advertisement."""
    egress(home, f'["{PUBLIC4}:443"]')
    lab, middle = home.lab, home.middle("oak")
    six = doors((PUBLIC6, OTHER6, *(each for each in HOST if ":" in each)), (443, 80, 53))
    assert lab.knock(six) == set(six)
    before, began = home.dropped("oak"), time.time()
    gateway = next(
        word.partition("/")[0]
        for word in lab.run(middle, "ip", "-6", "addr", "show", "scope", "link").split()
        if word.startswith("fe80:")
    )
    link_local = [f"{kind} {gateway}%eth0 {port}" for kind in ("tcp", "udp") for port in (53, 443)]
    assert home.knock("oak", six + link_local) == set()
    assert home.knock("oak", ["advertise 2001:db8:66::", *six]) == set()
    assert lab.heard("host", began) == [] and lab.heard("world", began) == []
    addresses = lab.run(middle, "ip", "-6", "addr") + lab.run(lab.host, "ip", "-6", "addr")
    assert "2001:db8:66:" not in addresses  # nobody believed it
    after = home.dropped("oak")
    assert after["egress"] > before["egress"] or after["host"] > before["host"]
    assert after["private"] + after["host"] + after["egress"] >= sum(before.values()) + len(six)
    assert after["spoofed"] > before["spoofed"]  # the advertisement
    home.knocks("oak", [f"tcp {PUBLIC4} 443"], {f"tcp {PUBLIC4} 443"})


def test_an_advertisement_from_outside_is_not_believed_by_the_guest(home: NetHome) -> None:
    guest = home.run("oak", "sh", "-c", "cat /proc/sys/net/ipv6/conf/eth0/accept_ra").stdout
    assert guest == b"0\n"


def test_an_ipv6_entry_works(home: NetHome) -> None:
    """N4: never ignored."""
    egress(home, f'["[{PUBLIC6}]:443", "[2001:db8:20::/48]:80"]')
    asked = doors((PUBLIC6, OTHER6, PUBLIC4), (80, 443))
    home.knocks("oak", asked, {*doors((PUBLIC6,), (443,)), *doors((OTHER6,), (80,))})


def test_an_address_of_the_host_is_reached_only_when_it_is_named(home: NetHome) -> None:
    egress(home, f'["192.168.0.0/16:80", "{LAN4}:443"]')
    asked = doors((LAN4, "192.168.9.9"), (80, 443))
    assert home.lab.knock(asked) == set(asked)
    home.knocks("oak", asked, {*doors((LAN4,), (443,)), *doors(("192.168.9.9",), (80,))})


def test_a_forged_source_does_not_get_out(home: NetHome) -> None:
    egress(home, "all")
    before, began = home.dropped("oak")["spoofed"], time.time()
    forged = [f"forge {source} {PUBLIC4} 443" for source in (LAN4, "198.18.0.2", OTHER4)]
    home.knock("oak", forged, wait=300)
    assert home.lab.heard("world", began) == []
    assert home.dropped("oak")["spoofed"] >= before + 3


def test_narrowed_egress_cuts_what_is_connected(home: NetHome) -> None:
    """A connection that was allowed is judged again, in both directions."""
    egress(home, "all")
    lab = home.lab
    server = (
        "import socket,time\n"
        f"s=socket.create_server(('{PUBLIC4}',7777)); c,_=s.accept()\n"
        "while True:\n c.sendall(b'.'); time.sleep(0.05)\n"
    )
    running = subprocess.Popen([*lab.enter(lab.world), sys.executable, "-c", server])
    try:
        lab.listens(lab.world, 7777)
        home.run("oak", "sh", "-c", f"nc {PUBLIC4} 7777 > /tmp/stream & sleep 1")

        def streamed() -> int:
            return int(home.run("oak", "sh", "-c", "wc -c < /tmp/stream").stdout)

        until(lambda: streamed() > 5, 20, "what was allowed arrives")
        egress(home, f'["{OTHER4}:443"]')
        one = int(home.run("oak", "sh", "-c", "sleep 0.5; wc -c < /tmp/stream").stdout)
        two = int(home.run("oak", "sh", "-c", "sleep 2; wc -c < /tmp/stream").stdout)
        assert one == two
    finally:
        running.kill()
        running.wait()
