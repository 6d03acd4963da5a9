"""A host of our own to attack: a network namespace with a LAN, a way out and canaries, no uplink.

`host` is where the controller runs; `world` holds every attacked address that is not the host's, on
the far side of a veth; `open` is a namespace beside the sandboxes without any wall, from which the
same canaries are reached by the same program. No packet leaves the machine: nothing here is
connected to anything else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from specs.names import HostNames
from tests.vm.cases import CaseHome, home_of
from tests.vm.harness import until

HERE = Path(__file__).parent
BOXFILE = "accel: tcg\ncpus: 1\nram_mib: 192\ndata: {size_mib: 32}\nnetwork: bridge\n"
PORTS = (53, 80, 443, 8443)
RESOLVER = "198.51.100.53"
PUBLIC4, PUBLIC6 = "198.51.100.10", "2001:db8:10::10"
OTHER4, OTHER6 = "203.0.113.200", "2001:db8:20::20"
# addresses of the lab's host: its LAN, and the end of its uplink
LAN4, LAN6, UP4, UP6 = "192.168.77.5", "2001:db8:77::5", "203.0.113.1", "2001:db8:113::1"
HOST = (LAN4, LAN6, UP4, UP6)
PRIVATE = (
    "10.9.9.9", "172.16.9.9", "192.168.9.9", "100.64.9.9", "169.254.169.254", "fd99::9",
)  # fmt: skip
GATEWAY4, GATEWAY6 = "203.0.113.10", "2001:db8:113::10"


def ip(*arguments: str, namespace: str = "") -> str:
    where = ["-n", namespace] if namespace else []
    done = subprocess.run(["ip", *where, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


@cache
def dialer() -> bytes:
    """dial.c as a static program, for guests and namespaces alike."""
    with tempfile.TemporaryDirectory(prefix="boxtest-dial-") as folder:
        target = Path(folder) / "dial"
        source = HERE / "dial.c"
        subprocess.run(["cc", "-O1", "-static", "-Wall", "-o", target, source], check=True)
        return target.read_bytes()


class Lab:
    """Three namespaces and the canaries in them."""

    def __init__(self, folder: Path) -> None:
        tag = secrets.token_hex(3)
        self.folder = folder
        self.host, self.world, self.open = (f"boxtest-{tag}-{each}" for each in "hwo")
        self.word = f"canary-{tag}"
        self._started: list[subprocess.Popen[bytes]] = []
        for name in (self.host, self.world, self.open):
            ip("netns", "add", name)
            ip("link", "set", "lo", "up", namespace=name)

    def build(self) -> None:
        host, world = self.host, self.world
        for setting in ("ipv4.ip_forward=1", "ipv6.conf.all.forwarding=1"):
            self.run(host, "sysctl", "-qw", f"net.{setting}")
        self._join(host, "up0", [f"{UP4}/24", f"{UP6}/64"],
                   world, "up1", [f"{GATEWAY4}/24", f"{GATEWAY6}/64"])  # fmt: skip
        # A device of the LAN without a cable: the kernel here has no dummy links.
        ip("link", "add", "lan0", "type", "bridge", namespace=host)
        self._address(host, "lan0", [f"{LAN4}/24", f"{LAN6}/64"])
        ip("route", "add", "default", "via", GATEWAY4, namespace=host)
        ip("-6", "route", "add", "default", "via", GATEWAY6, namespace=host)
        others = [RESOLVER, PUBLIC4, PUBLIC6, OTHER4, OTHER6, *PRIVATE]
        self._address(world, "lo", [f"{each}/{128 if ':' in each else 32}" for each in others])
        ip("link", "add", "here", "type", "bridge", namespace=world)
        self._join(host, "open0", ["10.77.0.1/30", "2001:db8:7a::1/64"],
                   self.open, "open1", ["10.77.0.2/30", "2001:db8:7a::2/64"])  # fmt: skip
        ip("route", "add", "default", "via", "10.77.0.1", namespace=self.open)
        ip("-6", "route", "add", "default", "via", "2001:db8:7a::1", namespace=self.open)
        ip("route", "add", "10.77.0.0/30", "via", UP4, namespace=world)
        ip("-6", "route", "add", "2001:db8:7a::/64", "via", UP6, namespace=world)
        self.canary(host, "host", "::")
        self.canary(world, "world", "::")

    def _join(
        self, one: str, here: str, own: list[str], two: str, there: str, other: list[str]
    ) -> None:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", two, namespace=one)
        self._address(one, here, own)
        self._address(two, there, other)

    def _address(self, space: str, device: str, addresses: Iterable[str]) -> None:
        ip("link", "set", device, "up", namespace=space)
        for each in addresses:
            more = ["nodad"] if ":" in each else []
            ip("addr", "add", each, "dev", device, *more, namespace=space)

    def enter(self, space: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{space}"]

    def run(self, space: str, *command: str, data: bytes = b"") -> str:
        done = subprocess.run(
            [*self.enter(space), *command], input=data, capture_output=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stderr!r}"
        return done.stdout.decode()

    def canary(self, space: str, label: str, address: str, ports: Sequence[int] = PORTS) -> None:
        log = self._log(label)
        command = [sys.executable, str(HERE / "canary.py"), str(log), self.word, address]
        self._started.append(subprocess.Popen([*self.enter(space), *command, *map(str, ports)]))
        until(lambda: log.exists() and log.read_text(), 30, f"the canary {label} listens")

    def listens(self, space: str, port: int) -> None:
        """Wait until somebody takes TCP connections at this port."""
        listing = ("ss", "-Hltn", f"sport = :{port}")
        until(lambda: self.run(space, *listing), 30, f"somebody listens at {port}")

    def _log(self, label: str) -> Path:
        return self.folder / f"canary-{label}.log"

    def heard(self, label: str, since: float = 0.0) -> list[str]:
        """ "PROTOCOL ADDRESS PORT PEER" of everything that reached this canary since then."""
        lines = self._log(label).read_text().splitlines()[1:]
        parts = (line.split(" ", 1) for line in lines)
        return [rest for moment, rest in parts if float(moment) >= since]

    def knock(self, doors: Iterable[str], space: str = "") -> set[str]:
        """Which of these doors ("tcp ADDRESS PORT") answer with our word, seen from a namespace."""
        program = self.folder / "dial"
        if not program.exists():
            program.write_bytes(dialer())
            program.chmod(0o755)
        text = "".join(f"{door}\n" for door in doors).encode()
        return self.answered(self.run(space or self.open, str(program), "1500", data=text))

    def answered(self, output: str) -> set[str]:
        return {
            line.removesuffix(f" {self.word}")
            for line in output.splitlines()
            if line.endswith(f" {self.word}")
        }

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for name in (self.host, self.world, self.open):
            subprocess.run(["ip", "netns", "delete", name], check=True)


class NetHome(CaseHome):
    """A home whose controller runs in the lab's host."""

    lab: Lab

    def give_dialer(self, name: str) -> None:
        put = ["exec", name, "-i", "--", "sh", "-c", "cat > /tmp/dial && chmod +x /tmp/dial"]
        self.box(*put, data=dialer())

    def knock(self, name: str, doors: Iterable[str], wait: int = 1500) -> set[str]:
        """Which of these doors answer with the canaries' word, seen from inside a guest."""
        text = "".join(f"{door}\n" for door in doors).encode()
        done = self.box("exec", name, "-i", "--", "/tmp/dial", str(wait), data=text)
        return self.lab.answered(done.stdout.decode())

    def knocks(self, name: str, asked: Iterable[str], open_ones: set[str]) -> None:
        """Of the doors asked for, exactly these are open."""
        asked = list(asked)
        answered(lambda: self.knock(name, asked), open_ones)

    def shown(self, name: str) -> dict[str, str]:
        """What `box describe` shows of the network."""
        found: dict[str, str] = self.report(name).get("network", {})
        return found

    def dropped(self, name: str) -> dict[str, int]:
        """Drops by reason, read with nft in both namespaces."""
        found: dict[str, int] = {}
        middle, table = self.shown(name)["namespaces"].split(" ")[2], self.table(name)
        for space, which in ((middle, "box"), (self.lab.host, table)):
            text = self.lab.run(space, "nft", "list", "counters", "table", "inet", which)
            words = text.replace("{", " ").split()
            for at, word in enumerate(words):
                if word == "counter":
                    found[words[at + 1]] = found.get(words[at + 1], 0) + int(words[at + 3])
        return found

    def table(self, name: str) -> str:
        return f"box-{self.instance}-{name}"

    def middle(self, name: str) -> str:
        return self.shown(name)["namespaces"].split(" ")[2]

    def vmm_space(self, name: str) -> str:
        return self.shown(name)["namespaces"].split(" ")[0]

    def host_shows(self) -> list[str]:
        """Everything of sandboxes that the lab's host shows: links, rules, routes, tables."""
        lab = self.lab
        links = [
            line for line in ip("-o", "link", namespace=lab.host).splitlines() if ": bx" in line
        ]
        rules = [
            line
            for family in ("-4", "-6")
            for line in ip(family, "rule", namespace=lab.host).splitlines()
            if "bx" in line
        ]
        routes = [line for line in ip("route", namespace=lab.host).splitlines() if "dev bx" in line]
        tables = lab.run(lab.host, "nft", "list", "tables").splitlines()
        return [*links, *rules, *routes, *(each for each in tables if self.instance in each)]

    def traces(self, names: HostNames) -> list[str]:
        """Everything that anybody's sandbox has here: namespaces, links, rules, routes, table."""
        lab, folder = self.lab, Path("/run/netns")
        found = [name for kind in "vm" if (folder / (name := names.interface(kind))).exists()]
        listings = [
            ip(*command, namespace=lab.host)
            for command in (("-o", "link"), ("-4", "rule"), ("-6", "rule"), ("route",))
        ]
        lines = "\n".join(listings).splitlines()
        found += [line for line in lines if names.interface("h") in line]
        tables = lab.run(lab.host, "nft", "list", "tables").splitlines()
        return [*found, *(each for each in tables if f"box-{names.instance}-" in each)]

    def apply(self, name: str, text: str) -> None:
        """Put a changed Boxfile and wait until it is what runs."""
        before = self.generation(name)
        self.put(name, text)
        until(lambda: self.generation(name) > before, 20, "the change is seen")
        self.ready(name)


@contextlib.contextmanager
def built_lab() -> Iterator[Lab]:
    """A lab in a folder that everybody may look into, both gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="boxtest-"))
    folder.chmod(0o755)
    lab = Lab(folder)
    try:
        lab.build()
        yield lab
    finally:
        lab.close()
        shutil.rmtree(folder)


@contextlib.contextmanager
def net_home(*, config: str = f'resolver = "{RESOLVER}"\n') -> Iterator[NetHome]:
    """A lab, and a home with a controller in it."""
    with (
        built_lab() as lab,
        home_of(NetHome, config=config, prefix=lab.enter(lab.host)) as home,
    ):
        home.lab = lab
        yield home


def answered(knock: Callable[[], set[str]], open_ones: set[str]) -> None:
    """Each of these answers sooner or later, and none other ever does. On a busy host an answer may
    come later than a knock waits for it.
    """

    def all_of_them() -> bool:
        found = knock()
        assert found <= open_ones, found - open_ones
        missing.difference_update(found)
        return not missing

    missing = set(open_ones)
    until(all_of_them, 20, lambda: f"these answer: {missing}")


def doors(addresses: Iterable[str], ports: Sequence[int] = (53, 443)) -> list[str]:
    """Every address at every port over TCP and UDP."""
    return [f"{kind} {to} {port}" for to in addresses for port in ports for kind in ("tcp", "udp")]


def steady(seconds: float) -> float:
    """Wait, and return the moment it began."""
    began = time.time()
    time.sleep(seconds)
    return began


def vmm_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
