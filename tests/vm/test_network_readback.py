"""Each difference of a sandbox's network is read off the kernel, and put right; without a VM."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from reconcilers.facts import Network
from reconcilers.network import links, spaces
from reconcilers.network.addresses import Addresses, addresses, mac, slot_of
from reconcilers.network.networks import Networks
from reconcilers.network.rules import CONNECTIONS_MAX
from reconcilers.network.wanted import MIDDLE_TABLE, Wanted, host_table
from specs.boxfile import Boxfile
from specs.config import Config
from specs.names import HostNames
from specs.parse import parse_boxfile
from tests.vm.harness import until
from tests.vm.netlab import BOXFILE, PUBLIC4, RESOLVER, Lab, ip

pytestmark = pytest.mark.needs_root
NAMES = HostNames("0123456789ab", "readback")
V, M, H = (NAMES.interface(kind) for kind in "vmh")
BRIDGE, INNER, GUEST_SIDE, UPLINK = (NAMES.interface(kind) for kind in "bigu")


class Made:
    """A network without a VM, in a lab, and whoever looks after it."""

    def __init__(self, lab: Lab, box: Boxfile) -> None:
        self.lab, self.box = lab, box
        self.networks = Networks(Config(resolver=RESOLVER))

    def look(self, pid: int = 0) -> Network:
        return spaces.inside(self.lab.host, lambda: self.networks.observe(NAMES, self.box, pid))

    def wrong(self, pid: int = 0) -> dict[str, str]:
        """Item -> what it says, of everything that is not as wanted."""
        return {each.item: each.got for each in self.look(pid).readings if not each.ok}

    def raise_up(self) -> None:
        spaces.inside(self.lab.host, partial(self.networks.raise_up, NAMES, self.box))

    def ip(self, space: str, line: str) -> None:
        ip(*line.split(), namespace=self.lab.host if space == H else space)

    def run(self, space: str, line: str) -> None:
        self.lab.run(self.lab.host if space == H else space, *line.split())


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    parsed = parse_boxfile(BOXFILE.encode(), file="readback.box.yaml", expected_name="readback")
    assert parsed.box is not None
    with tempfile.TemporaryDirectory(prefix="boxtest-") as folder:
        lab = Lab(Path(folder))
        one = Made(lab, parsed.box)
        try:
            lab.build()
            one.raise_up()
            yield one
        finally:
            spaces.inside(lab.host, partial(one.networks.remove, NAMES))
            lab.close()


def test_the_rules_are_there_before_any_link_is(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So they bind the first packet. What is seen is the kernel's, when the links are begun."""
    spaces.inside(made.lab.host, partial(made.networks.remove, NAMES))
    seen: list[str] = []
    begin = links.raise_links

    def begun(wanted: Wanted) -> None:
        for space in (V, M):
            names = ip("-o", "link", namespace=space).splitlines()
            seen.extend(f"{space} has {line}" for line in names if ": lo:" not in line)
        if H in ip("-o", "link", namespace=made.lab.host):
            seen.append("the host's end is there")
        for space, table in ((M, MIDDLE_TABLE), (made.lab.host, wanted.host_table)):
            rules = made.lab.run(space, "nft", "list", "table", "inet", table)
            assert "drop" in rules, rules
            seen.append(f"rules: {table}")
        begin(wanted)

    monkeypatch.setattr(links, "raise_links", begun)
    made.raise_up()
    assert seen == [f"rules: {MIDDLE_TABLE}", f"rules: {host_table(NAMES)}"]
    assert made.wrong() == {}


def test_what_was_made_is_read_as_wanted(made: Made) -> None:
    found = made.look()
    assert found.present and len(found.readings) == 7 and made.wrong() == {}
    made.raise_up()
    assert made.wrong() == {}


Change = Callable[[Made], None]


def ip_in(space: str, line: str) -> Change:
    return lambda made: made.ip(space, line)


def run_in(space: str, line: str) -> Change:
    return lambda made: made.run(space, line)


CHANGES: dict[str, tuple[str, Change]] = {
    "rules flushed": ("rules", run_in(M, "nft flush table inet box")),
    "rules deleted": ("rules", run_in(M, "nft delete table inet box")),
    "host rules deleted": (
        "host rules", run_in(H, f"nft delete table inet box-{NAMES.instance}-{NAMES.sandbox}"),
    ),
    "link down": ("links", ip_in(M, f"link set {GUEST_SIDE} down")),
    "host link gone": ("links", ip_in(H, f"link delete {H}")),
    "guest link gone": ("links", ip_in(V, f"link delete {INNER}")),
    "bridge gone": ("links", ip_in(V, f"link delete {BRIDGE}")),
    "off the bridge": ("links", ip_in(V, f"link set {INNER} nomaster")),
    "bridge that learns": (
        "links", ip_in(V, f"link set {BRIDGE} type bridge ageing_time 30000"),
    ),
    "other MTU": ("links", ip_in(M, f"link set {UPLINK} mtu 1300")),
    "foreign link": ("links", ip_in(M, "link add sit0 type bridge")),
    "foreign link beside the tap": ("links", ip_in(V, "link add extra0 type bridge")),
    "address gone": ("addresses", ip_in(M, f"addr flush dev {GUEST_SIDE} scope global")),
    "extra address": ("addresses", ip_in(M, f"addr add 192.0.2.77/32 dev {UPLINK}")),
    "extra IPv6 address": ("addresses", ip_in(H, f"addr add 2001:db8:77::7/128 dev {H}")),
    "routes flushed": ("routes", ip_in(M, "route flush table 100")),
    "IPv6 routes flushed": ("routes", ip_in(M, "-6 route flush table 100")),
    "route for all": ("routes", ip_in(M, f"route add default dev {UPLINK}")),
    "route of another kind": ("routes", ip_in(M, "route add blackhole 192.0.2.0/24 table 100")),
    "host route gone": ("routes", ip_in(H, f"route flush dev {H}")),
    "mark rule gone": ("policy routing", ip_in(M, "rule del pref 100")),
    "rule for all": ("policy routing", ip_in(M, "rule add pref 50 lookup 100")),
    "host rule gone": ("policy routing", ip_in(H, "rule del pref 97")),
    "IPv6 host rule gone": ("policy routing", ip_in(H, "-6 rule del pref 98")),
    "host rule of another kind": ("policy routing", ip_in(H, f"rule add pref 96 iif {H} lookup 9")),
    "setting": ("settings", run_in(M, f"sysctl -qw net.ipv4.conf.{GUEST_SIDE}.arp_ignore=0")),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_by_hand_is_named_and_put_right(made: Made, change: str) -> None:
    item, act = CHANGES[change]
    act(made)
    wrong = made.wrong()
    assert item in wrong, wrong
    made.raise_up()
    assert made.wrong() == {}


@pytest.fixture
def beside(made: Made) -> Iterator[str]:
    """A device in the tap's place: what it sends comes over the bridge as a guest's frames do."""
    made.ip(V, "link add flood0 type veth peer name flood1")
    try:
        for name in ("flood0", "flood1"):
            made.ip(V, f"link set {name} up")
        made.ip(V, f"link set flood1 master {BRIDGE}")
        port = partial(made.lab.run, V, "bridge", "link", "show", "dev", "flood1")
        until(lambda: "state forwarding" in port(), 10, "the bridge takes its frames")
        yield "flood0"
    finally:
        made.ip(V, "link delete flood0")


def test_a_flood_of_source_addresses_is_kept_by_no_table_of_the_host(
    made: Made, beside: str
) -> None:
    """A learning bridge keeps 124 bytes of each, in kernel memory that no control group counts."""
    spaces.inside(V, partial(flood, beside, 2000))
    kept = made.lab.run(V, "bridge", "fdb", "show", "br", BRIDGE).splitlines()
    assert [line for line in kept if line.startswith("06:")] == []


def test_neighbours_that_a_guest_makes_up_are_not_kept_for_the_whole_host(
    made: Made, beside: str
) -> None:
    """All namespaces share one table of 1,024. The guest's own addresses are kept: it can send."""
    own = slots_addresses(made)
    guest = mac(NAMES, "guest")
    wait_for_gateway(made)
    solicit = partial(soliciting, beside, guest, own)
    made_up4 = [IPv4Address("10.50.0.0") + n for n in range(200)]
    made_up6 = [IPv6Address("fe80::7:0") + n for n in range(200)]
    spaces.inside(V, lambda: solicit([*made_up4, *made_up6, own.guest4, own.guest6]))

    def known() -> set[str]:
        lines = made.lab.run(M, "ip", "neigh", "show", "dev", GUEST_SIDE).splitlines()
        return {line.split()[0] for line in lines}

    until(lambda: {str(own.guest4), str(own.guest6)} <= known(), 10, "the guest's own")
    assert known() == {str(own.guest4), str(own.guest6)}


def test_a_guest_cannot_fill_the_hosts_table_of_connections(made: Made, beside: str) -> None:
    own, guest = slots_addresses(made), mac(NAMES, "guest")
    wait_for_gateway(made)

    def connections() -> int:
        shown = made.lab.run(made.lab.host, "sysctl", "-n", "net.netfilter.nf_conntrack_count")
        return int(shown)

    gateway = mac(NAMES, "gateway")
    packets = partial(knock, beside, guest, gateway, own.guest4.packed, CONNECTIONS_MAX + 999)

    def filled() -> bool:
        spaces.inside(V, packets)
        return connections() > CONNECTIONS_MAX * 0.9

    until(filled, 20, "its share is taken, though a busy host loses some packets")
    assert connections() <= CONNECTIONS_MAX + 100


def knock(device: str, source: str, gateway: str, asker: bytes, count: int) -> None:
    """As many UDP packets to the world, each from a port of its own."""
    ether = bytes.fromhex(f"{gateway}{source}".replace(":", "")) + b"\x08\x00"
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28, 0, 0, 64, 17, 0)
    head += asker + IPv4Address(PUBLIC4).packed
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((device, 0))
        for number in range(count):
            out.send(ether + head + struct.pack("!HHHH", 1024 + number, 443, 8, 0))


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return ~total & 0xFFFF


def wait_for_gateway(made: Made) -> None:
    shown = partial(made.lab.run, M, "ip", "-6", "addr", "show", "dev", GUEST_SIDE)
    until(lambda: "tentative" not in shown(), 10, "the gateway's addresses are taken")


def slots_addresses(made: Made) -> Addresses:
    shown = made.lab.run(M, "ip", "-4", "-o", "addr", "show", "dev", GUEST_SIDE)
    slot = slot_of(IPv4Address(shown.split()[3].partition("/")[0]))
    assert slot is not None
    return addresses(NAMES, slot)


def soliciting(
    device: str, source: str, own: Addresses, askers: list[IPv4Address | IPv6Address]
) -> None:
    """Who has the gateway's address? asked once in the name of each of `askers`."""
    hardware = bytes.fromhex(source.replace(":", ""))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((device, 0))
        for asker in askers:
            out.send(arp(hardware, asker.packed, own.gateway4.packed) if asker.version == 4
                     else solicitation(hardware, asker.packed, own.gateway6.packed))  # fmt: skip


def arp(hardware: bytes, asker: bytes, wanted: bytes) -> bytes:
    """RFC 826."""
    head = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
    return b"\xff" * 6 + hardware + b"\x08\x06" + head + hardware + asker + bytes(6) + wanted


def solicitation(hardware: bytes, asker: bytes, wanted: bytes) -> bytes:
    """RFC 4861, 4.3, to the solicited-node address."""
    to = bytes.fromhex("ff0200000000000000000001ff") + wanted[-3:]
    body = b"\x87\0\0\0" + bytes(4) + wanted + b"\1\1" + hardware
    summed = asker + to + struct.pack("!II", len(body), 58) + body
    body = body[:2] + struct.pack("!H", checksum(summed)) + body[4:]
    head = struct.pack("!IHBB", 6 << 28, len(body), 58, 255)
    return b"\x33\x33" + to[-4:] + hardware + b"\x86\xdd" + head + asker + to + body


def flood(device: str, count: int) -> None:
    """Broadcasts from as many MAC addresses, all of them 06:..."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((device, 0))
        for number in range(count):
            out.send(b"\xff" * 6 + b"\x06" + number.to_bytes(5, "big") + b"\x88\xb5" + bytes(46))


def test_a_link_that_comes_and_goes_on_the_host_changes_no_rule(made: Made) -> None:
    """As a container's does, with the link-local address that every link has."""
    made.ip(H, "link add comes0 type veth peer name comes1")
    try:
        for name in ("comes0", "comes1"):
            made.ip(H, f"link set {name} up")
        shown = partial(made.lab.run, made.lab.host, "ip", "-6", "addr", "show", "dev", "comes0")
        until(lambda: "fe80:" in shown(), 10, "its address")
        assert made.wrong() == {}
    finally:
        made.ip(H, "link delete comes0")
    assert made.wrong() == {}


def test_the_tap_and_the_place_of_whoever_holds_it_are_read(made: Made) -> None:
    holder = subprocess.Popen([*made.lab.enter(V), "sleep", "60"])
    try:
        until(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n", 10, "it is there")
        assert made.wrong(holder.pid).keys() == {"tap"}
        tap, space = made.networks.open_tap(NAMES)
        os.close(space)
        assert made.wrong(holder.pid) == {}
        made.ip(V, f"link set {NAMES.interface('t')} down")
        [fault] = [each for each in made.look(holder.pid).readings if not each.ok]
        assert (fault.item, fault.mend) == ("tap", "in place")
        made.raise_up()
        assert made.wrong(holder.pid) == {}
        os.close(tap)
        [fault] = [each for each in made.look(holder.pid).readings if not each.ok]
        assert (fault.item, fault.mend) == ("tap", "replace")
    finally:
        holder.kill()
        holder.wait()
    assert made.wrong(os.getpid()).keys() == {"tap", "namespace of the VMM"}


def test_a_namespace_that_is_gone_is_made_again(made: Made) -> None:
    spaces.remove(M)
    assert {"links", "rules"} <= made.wrong().keys()

    def again() -> bool:
        made.raise_up()
        return made.wrong() == {}

    # As every pass does: the kernel takes the ends of its links away when it comes to it.
    until(again, 20, lambda: f"it is as wanted: {made.wrong()}")
