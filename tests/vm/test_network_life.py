"""Networks of several sandboxes, over restarts, crashes, changes of the uplink, and their end.

Cases L3 (names that are alike) and N6 (MTU) among them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import pytest

from reconcilers.network import spaces
from reconcilers.network.networks import Networks
from specs.config import Config
from specs.names import HostNames
from specs.parse import parse_boxfile
from tests.tracebacks import no_traceback
from tests.vm.cases import names as sandboxes
from tests.vm.harness import until
from tests.vm.netlab import (
    BOXFILE,
    PUBLIC4,
    PUBLIC6,
    NetHome,
    doors,
    ip,
    net_home,
    vmm_alive,
)

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

MIB = 1 << 20
# busybox has a server for one connection: it says a word to whoever comes
SERVE = "while :; do echo {word} | nc -l -p {port}; done </dev/null >/dev/null 2>&1 &"


@pytest.fixture(scope="module")
def shared() -> Iterator[NetHome]:
    with net_home() as made:
        yield made


@pytest.fixture
def home(shared: NetHome) -> Iterator[NetHome]:
    """One host and controller for all, without a sandbox before and after each test."""
    yield shared
    for family in ("ipv4.ip_forward", "ipv6.conf.all.forwarding"):
        shared.lab.run(shared.lab.host, "sysctl", "-qw", f"net.{family}=1")
    for name in sandboxes(shared):
        shared.box("delete", name)
        shared.nothing_left(name)
    until(lambda: not shared.spaces() and not shared.host_shows(), 30, "no network is left")


@pytest.fixture
def own_home() -> Iterator[NetHome]:
    """For a test that changes the host for good."""
    with net_home() as made:
        yield made


def reaches(home: NetHome, name: str) -> None:
    wanted = set(doors((PUBLIC4, PUBLIC6), (443,)))
    until(lambda: home.knock(name, wanted) == wanted, 20, f"{name} reaches the world")


def links_on(home: NetHome) -> list[str]:
    """Of sandboxes, on the lab's host."""
    return [line for line in home.host_shows() if ": bx" in line]


def test_long_names_do_not_meet_and_one_outlives_the_other(home: NetHome) -> None:
    """L3: names with one beginning, and the longest there is."""
    one, two = "warehouse-alpha-1", "warehouse-alpha-" + "2" * 47
    for name in (one, two):
        home.put(name, BOXFILE)
    for name in (one, two):
        home.ready(name)
        home.give_dialer(name)
        reaches(home, name)
    shown = {name: home.shown(name) for name in (one, two)}
    for fact in ("address4", "address6", "namespaces", "tables"):
        assert shown[one][fact] != shown[two][fact]
    assert len({line.split(": ")[1] for line in links_on(home)}) == 2
    stream = f"nc {PUBLIC4} 443 >/dev/null; while :; do nc -w 5 {PUBLIC4} 443; done > /tmp/heard &"
    home.run(two, "sh", "-c", f"({stream}) </dev/null >/dev/null 2>&1")
    pid = home.pid(two)
    home.remove(one)
    home.nothing_left(one)
    # Whatever is still there then belongs to the other one. The kernel takes a link away with its
    # namespace, which it does when it comes to it.
    left = partial(links_on, home)
    until(lambda: len(left()) == 1 and len(home.spaces()) == 2, 20, "one has no network")
    before = int(home.run(two, "sh", "-c", "wc -l < /tmp/heard").stdout)
    until(
        lambda: int(home.run(two, "sh", "-c", "wc -l < /tmp/heard").stdout) > before + 3,
        15,
        "traffic runs on",
    )
    assert home.pid(two) == pid
    home.remove(two)
    home.nothing_left(two)
    until(lambda: not home.host_shows() and not home.spaces(), 20, "no network is left")


def test_two_sandboxes_do_not_reach_each_other(home: NetHome) -> None:
    for name in ("ash", "elm"):
        home.put(name, f'{BOXFILE}egress: ["198.18.0.0/15:7000", "[fc00::/7]:7000"]\n')
    for name in ("ash", "elm"):
        home.ready(name)
        home.give_dialer(name)
        word = home.lab.word
        home.run(name, "sh", "-c", SERVE.format(word=word, port=7000))
    addresses = [home.shown("elm")[each].split(" ")[0] for each in ("address4", "address6")]
    asked = [f"tcp {each} 7000" for each in addresses]
    for each in asked:
        until(partial(home.knock, "elm", [each]), 15, f"elm reaches itself: {each}")
        assert home.knock("ash", [each]) == set()
    # Both tables refuse them on the host; the one that was loaded first comes to count them.
    assert home.dropped("ash")["sandbox"] + home.dropped("elm")["forward"] > 0
    # Not from beside them either, though the host has a route: nobody calls a guest.
    assert home.lab.knock(asked, home.lab.host) == set()


def test_a_restarted_controller_takes_the_network_up(home: NetHome) -> None:
    home.put("oak", BOXFILE)
    home.ready("oak")
    home.give_dialer("oak")
    pid, before = home.pid("oak"), home.shown("oak")
    home.stop(signal.SIGKILL)
    home.start()
    until(lambda: home.run("oak", "true", check=False).returncode == 0, 30, "it is taken up")
    reaches(home, "oak")
    assert home.pid("oak") == pid
    assert home.shown("oak")["address4"] == before["address4"]
    assert [d for d in home.drift("oak") if d["field"].startswith("network")] == []


def test_rules_changed_while_no_controller_ran_are_found(home: NetHome) -> None:
    home.put("oak", BOXFILE)
    home.ready("oak")
    middle, pid = home.middle("oak"), home.pid("oak")
    home.stop(signal.SIGKILL)
    home.lab.run(middle, "nft", "insert", "rule", "inet", "box", "entries", "accept")
    home.start()
    home.mended("oak", "network.rules")
    assert home.pid("oak") == pid
    assert "\t\taccept\n" not in home.lab.run(middle, "nft", "list", "chain", "inet", "box",
                                              "entries")  # fmt: skip


@pytest.mark.parametrize("delay", [0.05, 0.15, 0.25, 0.35, 0.5])
def test_a_kill_in_the_middle_of_set_up_leaves_nothing(home: NetHome, delay: float) -> None:
    home.put("oak", BOXFILE)
    time.sleep(delay)
    home.stop(signal.SIGKILL)
    home.start()
    home.remove("oak")
    home.nothing_left("oak")
    until(lambda: not home.spaces() and not home.host_shows(), 20, "nothing is left")


def test_a_stopped_sandbox_has_no_network_and_gets_it_back(home: NetHome) -> None:
    home.put("oak", BOXFILE)
    home.ready("oak")
    home.put("oak", f"{BOXFILE}state: stopped\n")
    until(lambda: not home.spaces() and not home.host_shows(), 30, "the network is gone")
    home.put("oak", BOXFILE)
    home.ready("oak")
    home.give_dialer("oak")
    reaches(home, "oak")


def test_network_none_has_no_device_and_no_namespace_of_ours(home: NetHome) -> None:
    home.put("oak", BOXFILE.replace("network: bridge\n", ""))
    home.ready("oak")
    devices = home.run("oak", "sh", "-c", "ls /sys/class/net").stdout
    assert devices == b"lo\n"
    assert home.spaces() == [] and home.host_shows() == []
    home.apply("oak", BOXFILE)
    assert home.run("oak", "sh", "-c", "ls /sys/class/net").stdout == b"eth0\nlo\n"
    home.apply("oak", BOXFILE.replace("network: bridge\n", ""))
    until(lambda: not home.host_shows() and not home.spaces(), 20, "no network is left")


def test_readonly_root_gets_its_resolver_too(home: NetHome) -> None:
    home.put("oak", f"{BOXFILE}readonly: true\n")
    home.ready("oak")
    gateway = home.shown("oak")["gateway4"]
    found = home.run("oak", "cat", "/etc/resolv.conf").stdout.decode()
    assert found == f"nameserver {gateway}\n"


def test_a_host_that_does_not_forward_is_told_how_and_left_alone(home: NetHome) -> None:
    lab = home.lab
    lab.run(lab.host, "sysctl", "-qw", "net.ipv4.ip_forward=0")
    home.put("oak", BOXFILE)
    until(lambda: "net.ipv4.ip_forward=1" in str(home.report("oak").get("failure")), 30, "the fix")
    assert home.condition("oak", "Ready")[0] == "False"
    assert lab.run(lab.host, "sysctl", "-n", "net.ipv4.ip_forward") == "0\n"
    assert home.vmms("oak") == [] and home.spaces() == [] and home.host_shows() == []
    lab.run(lab.host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    home.look_again()
    home.ready("oak", 120)


def test_a_network_the_host_cannot_give_stops_no_running_vm(home: NetHome) -> None:
    lab, none = home.lab, BOXFILE.replace("network: bridge\n", "")
    home.put("oak", none)
    home.ready("oak")
    pid = home.pid("oak")
    home.run("oak", "sh", "-c", "echo kept > /data/note")  # in the guest's page cache
    lab.run(lab.host, "sysctl", "-qw", "net.ipv4.ip_forward=0")
    home.put("oak", BOXFILE.replace("ram_mib: 192", "ram_mib: 208"))
    until(lambda: "ip_forward is 0" in home.message("oak", "Ready"), 30, "Ready says why")
    assert home.condition("oak", "Ready")[0] == "False"
    assert home.condition("oak", "Confined")[0] == "True", home.message("oak", "Confined")
    home.passes(2)
    assert home.pid("oak") == pid and home.run("oak", "cat", "/data/note").stdout == b"kept\n"
    assert home.spaces() == [] and home.host_shows() == [] and home.drifted("oak") == []
    # A controller that starts now takes it up as it is: its channel, and a limit put back.
    home.stop(signal.SIGKILL)
    home.without_pids_limit("oak")
    home.start()
    until(lambda: home.run("oak", "true", check=False).returncode == 0, 60, "it is taken up")
    home.mended("oak", "cgroup.pids")
    assert "ip_forward is 0" in home.message("oak", "Ready") and home.pid("oak") == pid
    home.put("oak", none)  # thought better of it
    home.ready("oak")
    assert home.pid("oak") == pid
    home.put("oak", BOXFILE)
    until(lambda: "ip_forward is 0" in home.message("oak", "Ready"), 30, "Ready says why")
    lab.run(lab.host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    home.look_again()
    home.ready("oak", 120)
    assert home.pid("oak") != pid
    assert home.run("oak", "sh", "-c", "ls /sys/class/net").stdout == b"eth0\nlo\n"
    # It was asked to end, not killed: what was only in its memory is on its disk.
    assert home.run("oak", "cat", "/data/note").stdout == b"kept\n"


def test_an_ipv6_entry_on_a_host_without_ipv6_forwarding_is_refused(home: NetHome) -> None:
    """N4: it works or is refused, never ignored."""
    lab = home.lab
    lab.run(lab.host, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=0")
    home.put("oak", f'{BOXFILE}egress: ["[{PUBLIC6}]:443"]\n')
    wanted = "net.ipv6.conf.all.forwarding=1"
    until(lambda: wanted in str(home.report("oak").get("failure")), 30, "the fix is named")
    assert home.vmms("oak") == []


def mtu_of(home: NetHome, name: str) -> set[str]:
    """Every MTU on the way: guest, tap, bridge, both veth pairs."""
    lab = home.lab
    found = {home.run(name, "cat", "/sys/class/net/eth0/mtu").stdout.decode().strip()}
    for space in (home.vmm_space(name), home.middle(name), lab.host):
        for line in ip("-o", "link", namespace=space).splitlines():
            words = line.split()
            if words[1].startswith("bx"):
                found.add(words[words.index("mtu") + 1])
    return found


def set_uplink(home: NetHome, mtu: int) -> None:
    lab = home.lab
    ip("link", "set", "up0", "mtu", str(mtu), namespace=lab.host)
    ip("link", "set", "up1", "mtu", str(mtu), namespace=lab.world)


def test_a_small_mtu_and_a_path_that_says_nothing(own_home: NetHome) -> None:
    """N6: 50 MiB over an uplink of 1,400 that drops "fragmentation needed"; then it shrinks."""
    home, lab = own_home, own_home.lab
    set_uplink(home, 1400)
    for space in (lab.world, lab.host):
        errors = "icmp type destination-unreachable drop; icmpv6 type packet-too-big drop;"
        chains = (f"chain {hook} {{ type filter hook {hook} priority 0; {errors} }}\n"
                  for hook in ("output", "input"))  # fmt: skip
        rules = f"table inet silent {{\n{''.join(chains)}}}\n"
        lab.run(space, "nft", "-f", "-", data=rules.encode())
    home.put("oak", BOXFILE)
    home.ready("oak")
    assert mtu_of(home, "oak") == {"1400"} and home.shown("oak")["mtu"] == "1400"
    served = subprocess.Popen([*lab.enter(lab.world), sys.executable, "-c", SERVER])
    try:
        lab.listens(lab.world, 7777)
        assert fetched(home) == 50 * MIB
        pid = home.pid("oak")
        set_uplink(home, 1300)
        home.look_again()
        until(lambda: home.shown("oak").get("mtu") == "1300", 40, "the status shows the MTU")
        home.ready("oak")
        until(lambda: mtu_of(home, "oak") == {"1300"}, 20, "the whole path has it")
        assert home.pid("oak") == pid
        assert fetched(home) == 50 * MIB
    finally:
        served.kill()
        served.wait()


SERVER = f"""
import socket
s = socket.create_server(("{PUBLIC4}", 7777))
while True:
    c, _ = s.accept()
    c.sendall(bytes({50 * MIB}))
    c.close()
"""


def fetched(home: NetHome) -> int:
    script = f"timeout 100 nc {PUBLIC4} 7777 </dev/null | wc -c"
    return int(home.run("oak", "sh", "-c", script).stdout)


def test_the_vmm_dies_and_comes_back_to_the_same_network(home: NetHome) -> None:
    home.put("oak", BOXFILE)
    home.ready("oak")
    pid, spaces = home.pid("oak"), home.spaces()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not vmm_alive(pid), 10, "it ended")
    until(lambda: home.pid("oak") != pid, 30, "another one runs")
    home.ready("oak")
    home.give_dialer("oak")
    reaches(home, "oak")
    assert sorted(home.spaces()) == sorted(spaces)


def test_networks_of_no_sandbox_are_removed_and_those_of_another_home_are_not(
    home: NetHome,
) -> None:
    """As they are left behind when a state file is lost; no VM is needed for it."""
    ours, other = HostNames(home.instance, "ghost"), HostNames("0123456789ab", "ghost")
    stuck = spaces.path_of(HostNames(home.instance, "stuck").interface("m"))
    box = parse_boxfile(BOXFILE.encode(), file="ghost.box.yaml", expected_name="ghost").box
    assert box is not None
    networks = Networks(Config())
    home.stop(signal.SIGKILL)
    try:
        for names in (ours, other):
            spaces.inside(home.lab.host, partial(networks.raise_up, names, box))
        foreign = home.traces(other)
        assert len(home.traces(ours)) == len(foreign) > 10
        stuck.mkdir()  # no namespace, and no file to remove: what cannot go keeps nothing else
        home.start()
        until(lambda: not home.traces(ours), 20, f"they are gone; {home.log()}")
        assert home.traces(other) == foreign
        until(lambda: f"{stuck.name}: " in home.log(), 10, "what stays is named in the log")
        # What somebody else removed by half is found by the rest: `ip rule`s and a table.
        home.stop(signal.SIGKILL)
        spaces.inside(home.lab.host, partial(networks.raise_up, ours, box))
        for kind in "vm":
            spaces.remove(ours.interface(kind))
        until(lambda: ours.interface("h") not in ip("link", namespace=home.lab.host), 10, "no link")
        assert len(home.traces(ours)) > 3
        home.start()
        until(lambda: not home.traces(ours), 20, f"they are gone; {home.log()}")
        no_traceback((home.path / "controller.log").read_bytes(), "in the controller's log")
    finally:
        for names in (ours, other):
            spaces.inside(home.lab.host, partial(networks.remove, names))
        stuck.rmdir()
    assert home.traces(other) == []
