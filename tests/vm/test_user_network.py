"""The network of an ordinary user's sandboxes, in a network namespace without an uplink.

What the tests assert they read as root, from outside: from the canaries, the kernel and nft. A
canary counts as out of reach only because the same door was open from beside the sandboxes.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from reconcilers.network.wanted import MARK
from tests.vm.harness import until
from tests.vm.netlab import (
    BOXFILE,
    HOST,
    LAN4,
    OTHER4,
    OTHER6,
    PRIVATE,
    PUBLIC4,
    PUBLIC6,
    UP4,
    UP6,
    Lab,
    built_lab,
    doors,
    ip,
)
from tests.vm.people import Person, person
from tests.vm.usernet import NAME, SOME, TAPS, UserNetHome, device, knocks, reaches, user_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with built_lab() as made:
        yield made


@pytest.fixture(scope="module")
def someone() -> Iterator[Person]:
    with person() as made:
        yield made


@pytest.fixture(scope="module")
def home(someone: Person, lab: Lab) -> Iterator[UserNetHome]:
    with user_home(someone, lab) as home:
        home.start()
        home.put(NAME, BOXFILE)
        home.ready(NAME)
        home.give_dialer()
        yield home


# -- the walls


def test_it_reaches_what_is_public_and_nothing_else(home: UserNetHome) -> None:
    public = doors([PUBLIC4, PUBLIC6, OTHER4, OTHER6])
    forbidden = doors([*HOST, *PRIVATE])
    assert home.lab.knock([*public, *forbidden]) == {*public, *forbidden}
    began = time.time()
    knocks(home, [*public, *forbidden, *doors(["127.0.0.1", "::1"])], set(public))
    assert home.lab.heard("host", began) == []
    # as connections of the host itself
    assert {line.split()[3] for line in home.lab.heard("world", began)} == {UP4, UP6}


def test_names_are_asked_through_the_gateway_alone(home: UserNetHome) -> None:
    gateway = home.report(NAME)["network"]["gateway4"]
    asked = [f"{kind} {gateway} {port}" for kind in ("tcp", "udp") for port in (53, 443)]
    knocks(home, asked, {f"{kind} {gateway} 53" for kind in ("tcp", "udp")})


def test_addresses_the_host_gets_later_are_behind_the_wall_too(home: UserNetHome) -> None:
    """One on a device, and a range that the host takes for its own by a route alone."""
    host = home.lab.host
    ip("addr", "add", "198.51.99.9/32", "dev", "lan0", namespace=host)
    ip("route", "add", "local", "198.51.98.0/24", "dev", "lo", namespace=host)
    for address in ("198.51.99.9", "198.51.98.77"):
        ip("route", "add", address, "via", UP4, namespace=home.lab.world)
    later = doors(["198.51.99.9", "198.51.98.77"], (443,))
    try:
        assert home.lab.knock(later) == set(later)
        home.look_again()
        rules = ("nft", "list", "table", "inet", "box")
        until(lambda: "198.51.98.0/24" in home.middle(*rules), 40, f"a rule; {home.log()}")
        knocks(home, [*later, *SOME], set(SOME))
        home.mended(NAME, "network.rules")
    finally:
        ip("addr", "del", "198.51.99.9/32", "dev", "lan0", namespace=host)
        ip("route", "del", "local", "198.51.98.0/24", "dev", "lo", namespace=host)


# a SYN and a datagram that the rules let pass, to each address
_MARKED = """
import socket, sys
for to in sys.argv[2:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        made = socket.socket(socket.AF_INET, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, int(sys.argv[1]))
        made.settimeout(0.5)
        try:
            made.connect((to, 443))
            made.send(b"x")
        except OSError:
            pass
"""


def test_behind_the_rules_is_no_way_to_the_hosts_loopback(home: UserNetHome) -> None:
    """The wall of rules taken away: pasta's gateway and its own address are nobody on the host."""
    gateway = ipaddress.ip_address(home.report(NAME)["network"]["gateway4"])
    behind = [str(gateway + 4), str(gateway + 5)]
    began = time.time()
    home.middle(sys.executable, "-c", _MARKED, str(MARK), *behind, PUBLIC4)

    def kinds() -> set[str]:
        return {line.split()[0] for line in home.lab.heard("world", began)}

    until(lambda: kinds() == {"tcp", "udp"}, 10, "the way is open for what is public")
    assert home.lab.heard("host", began) == []


def test_nobody_calls_the_guest(home: UserNetHome) -> None:
    """pasta has sockets on the host; what comes to them and is no answer ends at the rules."""
    serve = "while :; do echo hello | nc -l -p 7000; done </dev/null >/dev/null 2>&1 &"
    home.run(NAME, "sh", "-c", serve)
    listening = home.lab.run(home.lab.host, "ss", "-Hltn")
    assert ":7000" not in listening
    assert home.lab.knock(doors([UP4, LAN4], (7000,)), home.lab.host) == set()


# -- the helpers


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("role", ["keeper", "pasta"])
def test_a_helper_is_confined_as_the_vmm_is(home: UserNetHome, role: str) -> None:
    vmm, pid = home.pid(NAME), home.helper(role)
    found, like = status(pid), status(vmm)
    assert (found["Uid"], found["Gid"]) == (like["Uid"], like["Gid"])
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(found[kind], 16) == 0, kind
    assert (found["NoNewPrivs"], found["Seccomp"], found["Groups"]) == ("1", "2", "")
    assert found["NSpid"].split()[-1] == "1"
    for kind in ("user", "mnt", "pid", "ipc", "uts", "cgroup"):
        theirs = os.readlink(f"/proc/{pid}/ns/{kind}")
        assert theirs != os.readlink(f"/proc/self/ns/{kind}"), kind
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        assert {"ro", "nosuid", "nodev"} <= set(line.split()[5].split(",")), line
    net = os.readlink(f"/proc/{pid}/ns/net")
    host = home.lab.run(home.lab.host, "readlink", "/proc/self/ns/net").strip()
    assert (net == host) is (role == "pasta")
    assert net != os.readlink(f"/proc/{vmm}/ns/net")
    # and box has read as much
    rows = home.report(NAME)["confinement"]
    own = [each for each in rows if each["item"].startswith(f"{role} 0")]
    assert len(own) > 20 and all(each["ok"] for each in own)
    if role == "pasta":
        assert int(found["Seccomp_filters"]) > 1  # the jail's, and its own
        assert not [at for at in os.listdir(f"/proc/{pid}/fd") if "net:[" in link(pid, at)]


def test_verify_proves_it_and_doctor_has_tried_it(home: UserNetHome) -> None:
    home.look_again()  # what an earlier test did to the host's addresses is in the rules
    until(lambda: home.box("verify", NAME, check=False).returncode == 0, 30, home.log())
    text = home.box("verify", NAME, "-o", "json").stdout.decode()
    for item in ("pasta 0: CapEff", "keeper 0: CapEff", "policy routing", "pasta 0: filters"):
        assert item in text
    found = json.loads(home.box("doctor", "-o", "json", check=False).stdout)["checks"]
    state = {each["name"]: each["state"] for each in found}
    names = ("nftables", "tap devices", "passt", "forwarding")
    assert {name: state[name] for name in names} == dict.fromkeys(names, "ok"), found


def link(pid: int, descriptor: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    return ""


# -- drift


@pytest.fixture
def knocking(home: UserNetHome) -> Iterator[None]:
    """The guest knocks at the world several times a second, over both families."""
    loop = (
        "while :; do printf 'udp %s 443\\ntcp %s 443\\nudp %s 443\\n' "
        f"{PUBLIC4} {PUBLIC4} {PUBLIC6} | /tmp/dial 150 >/dev/null; done"
    )
    home.run(NAME, "sh", "-c", f"({loop}) </dev/null >/dev/null 2>&1 & echo $! > /tmp/knocking")
    until(lambda: home.lab.heard("world", time.time() - 1), 15, "the knocks arrive at first")
    yield
    home.run(NAME, "sh", "-c", "[ ! -e /tmp/knocking ] || kill $(cat /tmp/knocking)")


def flush_rules(home: UserNetHome) -> None:
    home.middle("nft", "flush", "ruleset")


def delete_veth(home: UserNetHome) -> None:
    home.inner("ip", "link", "delete", device(home.inner("ip", "-o", "link"), "i"))


def lose_routes(home: UserNetHome) -> None:
    for family in ("-4", "-6"):
        home.middle("ip", family, "route", "flush", "table", "100")


def lose_mark_rule(home: UserNetHome) -> None:
    for family in ("-4", "-6"):
        home.middle("ip", family, "rule", "del", "pref", "100")


def uplink_down(home: UserNetHome) -> None:
    uplink = device(home.middle("ip", "-o", "link"), "u")
    home.middle("ip", "link", "set", uplink, "down")


@pytest.mark.parametrize(
    ("sabotage", "field"),
    [
        (flush_rules, "network.rules"),
        (delete_veth, "network."),
        (lose_routes, "network.routes"),
        (lose_mark_rule, "network.policy routing"),
        (uplink_down, "network."),
    ],
)
@pytest.mark.usefixtures("knocking")
def test_nothing_passes_while_a_wall_is_missing_and_then_it_is_mended(
    home: UserNetHome, sabotage: Callable[[UserNetHome], None], field: str
) -> None:
    pid, moment = home.pid(NAME), datetime.datetime.now(datetime.UTC)
    with home.standing_still():
        sabotage(home)
        time.sleep(0.7)  # what was on its way, by processes that a busy host lets wait
        since = time.time()
        time.sleep(1.2)
        assert home.lab.heard("world", since) == []
    home.look_again()

    def corrected(field: str = field) -> bool:
        return any(
            each["field"].startswith(field)
            and datetime.datetime.fromisoformat(each["first_seen"]) >= moment
            and each.get("corrected")
            for each in home.drift(NAME)
        )

    until(corrected, 60, f"drift of {field} is corrected; {home.log()}")
    home.ready(NAME)
    if sabotage is uplink_down and home.pid(NAME) != pid:
        # pasta ends if it has something to write to its device at that moment, and the VM with it.
        until(lambda: corrected("network.pasta"), 20, f"pasta is corrected; {home.log()}")
        home.give_dialer()
        pid = home.pid(NAME)
    reaches(home)
    assert home.pid(NAME) == pid


def test_egress_changes_in_the_running_vm(home: UserNetHome) -> None:
    pid, known = home.pid(NAME), home.drifts(NAME)
    home.apply(f"{BOXFILE}egress: none\n")
    assert home.knock(SOME, 700) == set()
    home.apply(f'{BOXFILE}egress: ["{PUBLIC4}:443", "{LAN4}:443", "[2001:db8::/32]:53"]\n')
    named = {*doors([PUBLIC4, LAN4], (443,)), *doors([PUBLIC6, OTHER6], (53,))}
    asked = doors([PUBLIC4, OTHER4, PUBLIC6, OTHER6, *HOST, *PRIVATE])
    knocks(home, asked, named)
    home.apply(BOXFILE)
    reaches(home)
    assert home.pid(NAME) == pid
    assert home.drifts(NAME) == known  # what a Boxfile asks for is none


def test_the_mtu_of_the_way_out_is_followed(home: UserNetHome) -> None:
    """N6: guest, links and status have it, and connections that are made then work."""
    pid, lab = home.pid(NAME), home.lab

    def followed(mtu: int) -> None:
        for link, space in (("up0", lab.host), ("up1", lab.world)):
            ip("link", "set", link, "mtu", str(mtu), namespace=space)
        home.look_again()
        shown = f"it shows {mtu}; {home.log()}"
        until(lambda: home.report(NAME).get("network", {}).get("mtu") == str(mtu), 40, shown)
        home.ready(NAME)
        mtu_of_guest = partial(home.run, NAME, "cat", "/sys/class/net/eth0/mtu")
        until(lambda: mtu_of_guest().stdout == f"{mtu}\n".encode(), 30, f"the guest has {mtu}")
        assert f"mtu {mtu} " in home.middle("ip", "-o", "link")

    try:
        followed(1300)
        reaches(home)
    finally:
        followed(1500)
    assert home.pid(NAME) == pid


def test_a_killed_controller_finds_the_network_again(home: UserNetHome) -> None:
    before = [home.pid(NAME), home.helper("keeper"), home.helper("pasta")]
    home.stop(signal.SIGKILL)
    home.start()
    answers = partial(home.run, NAME, "true", check=False)
    until(lambda: answers().returncode == 0, 40, f"it answers; {home.log()}")
    reaches(home)
    home.ready(NAME)
    assert [home.pid(NAME), home.helper("keeper"), home.helper("pasta")] == before


@pytest.mark.parametrize("role", ["pasta", "keeper"])
def test_who_loses_a_helper_is_replaced(home: UserNetHome, role: str) -> None:
    before = {home.pid(NAME), home.helper("keeper"), home.helper("pasta")}
    os.kill(home.helper(role), signal.SIGKILL)
    until(lambda: home.pid(NAME) not in {0, *before}, 60, f"another VMM; {home.log()}")
    home.ready(NAME)
    home.give_dialer()
    reaches(home)
    until(lambda: all(map(dead, before)), 20, "those before have ended")


def dead(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status(pid).get("State", "Z").startswith("Z")
    return True


# -- the end


def test_a_deletion_leaves_nothing(home: UserNetHome) -> None:
    pids = [home.pid(NAME), home.helper("keeper"), home.helper("pasta")]
    home.box("delete", NAME)
    home.nothing_left(NAME)
    for pid in pids:
        until(partial(dead, pid), 20, f"{pid} is gone")
    assert "bx" not in ip("-o", "link", namespace=home.lab.host)
    assert home.lab.run(home.lab.host, "nft", "list", "tables") == ""


def test_a_standard_one_has_the_same_walls(home: UserNetHome) -> None:
    home.put(NAME, f"{BOXFILE}isolation: standard\n")
    home.ready(NAME)
    home.give_dialer()
    public, forbidden = doors([PUBLIC4, PUBLIC6]), doors([*HOST, *PRIVATE])
    knocks(home, [*public, *forbidden], set(public))
    assert status(home.helper("pasta"))["Uid"].split() == [str(home.owner.uid)] * 4
    home.box("delete", NAME)
    home.nothing_left(NAME)


# -- what is missing is named


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (("chmod", "0600", "/dev/net/tun"), "/dev/net/tun cannot be opened"),
        (("mount", "--bind", "/bin/false", "/usr/bin/passt"), "pasta of its network"),
        (("mount", "--bind", "/bin/false", "/usr/sbin/nft"), "nft failed"),
    ],
    ids=["no tap", "no passt", "no nft"],
)
def test_it_is_not_started_where_a_part_is_missing(
    someone: Person, lab: Lab, before: tuple[str, ...], said: str
) -> None:
    script = TAPS.replace("exec", f"{' '.join(before)} && exec")
    with user_home(someone, lab, ("sh", "-c", script, "sh")) as home:
        home.put(NAME, BOXFILE)
        home.start()
        until(lambda: home.report(NAME).get("failure"), 60, f"it is refused; {home.log()}")
        failure = home.report(NAME)["failure"]
        assert said in failure["message"], failure
        assert home.vmms() == []
        # It is tried again now and then, with a keeper for as long as that takes.
        until(lambda: not home.helper("keeper"), 30, f"its keeper has ended; {home.log()}")
