"""A host to attack: network namespaces of our own without any uplink, and canaries in them.

In `host` runs the controller. `world` bears every attacked address that is not the host's, on the
far side of a veth. `beside` is a neighbour without any wall, from where the same canaries are
reached by the same program. Nothing of it is connected to anything else, which is read back before
every attack: no packet leaves the machine. The namespaces have no name and end with this process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .arena import Arena
from .report import Failed, Unproved
from .spaces import SEARCH, Ground, links

PORTS = (53, 80, 443)
# The host's own: its LAN, its uplink (RFC 5737 and 3849: for documentation).
LAN4, LAN6, UP4, UP6 = "192.168.77.5", "2001:db8:77::5", "203.0.113.1", "2001:db8:113::1"
GATEWAY4, GATEWAY6 = "203.0.113.10", "2001:db8:113::10"
# The world's: what anybody may reach with `egress: all`, and who answers for names there.
PUBLIC4, PUBLIC6 = "198.51.100.10", "2001:db8:10::10"
OTHER4, OTHER6 = "198.51.100.11", "2001:db8:20::20"
RESOLVER = "198.51.100.53"
# Metadata services, the addresses by which other tools lead to the host, and private ranges.
PRIVATE = (
    "169.254.169.254", "fd00:ec2::254", "169.254.1.2", "10.0.2.2", "10.9.9.9", "172.16.9.9",
    "192.168.9.9", "100.64.9.9", "fd99::9",
)  # fmt: skip
BESIDE = ("10.77.0.2/30", "2001:db8:7a::2/64")
BESIDE_HOST = ("10.77.0.1/30", "2001:db8:7a::1/64")
HOST = (LAN4, LAN6, UP4, UP6, *(each.partition("/")[0] for each in BESIDE_HOST))
# What may be in a namespace without leading anywhere but into another one.
KINDS = {"loopback", "bridge", "dummy", "veth", "tun", "ifb"}


@dataclass(frozen=True)
class Door:
    """One attempt: over this protocol, at this address and port."""

    kind: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.kind} {self.address} {self.port}"


def doors(addresses: Iterable[str], ports: Sequence[int] = (53, 443)) -> list[Door]:
    """Every address at every port over TCP and UDP."""
    return [Door(kind, to, port) for to in addresses for port in ports for kind in ("tcp", "udp")]


@dataclass
class Heard:
    """What a canary heard of one round of knocks."""

    doors: dict[Door, set[str]] = field(default_factory=dict)
    """Doors whose word it heard, and the addresses and ports it was said at."""
    strangers: list[str] = field(default_factory=list)
    """Lines of its record that belong to no word of ours."""
    queries: int = 0
    """Questions for a name."""


class Lan:
    """The namespaces, canaries and what they have heard. `arena` lends its folder and programs."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.folder = arena.folder / "lan"
        self.folder.mkdir(mode=0o700)
        self.tag = secrets.token_hex(6)
        self.ground: Ground | None = None
        self.spaces: dict[str, int] = {}
        self.canaries: dict[str, subprocess.Popen[bytes]] = {}
        self._words: dict[str, Door] = {}
        self._outside: dict[str, str] = {}
        self._fresh: set[str] = set()

    def build(self) -> None:
        """Raises Unproved where this host cannot make it, with everything undone."""
        try:
            self._outside = links(None)
            (self.folder / "mappers").mkdir()
            self.ground = Ground(self.folder / "mappers")
            for name in ("host", "world", "beside"):
                self.spaces[name] = self.ground.new()
                self._fresh |= links(self.spaces[name]).keys()  # some kernels give tunnels to each
            self._wire()
            self._forward()
            for name in ("host", "world"):
                self._canary(name)
            self.arena.compiled("knock.c")
            self._settle()
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            raise Unproved(
                f"no network to attack could be made here, so nothing was attacked: {error}"
            ) from None

    def _wire(self) -> None:
        for name in self.spaces:
            self.ip(name, "link", "set", "lo", "up")
        self._join("host", "up0", (f"{UP4}/24", f"{UP6}/64"),
                   "world", "up1", (f"{GATEWAY4}/24", f"{GATEWAY6}/64"))  # fmt: skip
        self._join("host", "beside0", BESIDE_HOST, "beside", "beside1", BESIDE)
        try:
            self.ip("host", "link", "add", "lan0", "type", "dummy")
        except OSError:  # a kernel without them has bridges
            self.ip("host", "link", "add", "lan0", "type", "bridge")
        self._address("host", "lan0", (f"{LAN4}/24", f"{LAN6}/64"))
        others = (PUBLIC4, PUBLIC6, OTHER4, OTHER6, RESOLVER, *PRIVATE)
        self._address("world", "lo", [f"{to}/{128 if ':' in to else 32}" for to in others])
        for name, four, six in (
            ("host", GATEWAY4, GATEWAY6),
            ("world", UP4, UP6),
            ("beside", *(each.partition("/")[0] for each in BESIDE_HOST)),
        ):
            self.ip(name, "route", "add", "default", "via", four)
            self.ip(name, "-6", "route", "add", "default", "via", six)

    def _join(
        self, one: str, here: str, own: Iterable[str], two: str, there: str, other: Iterable[str]
    ) -> None:
        there_fd = self.spaces[two]
        peer = ("peer", "name", there, "netns", f"/proc/self/fd/{there_fd}")
        self.run(one, ["ip", "link", "add", here, "type", "veth", *peer], keep=(there_fd,))
        self._address(one, here, own)
        self._address(two, there, other)

    def _address(self, space: str, device: str, addresses: Iterable[str]) -> None:
        self.ip(space, "link", "set", device, "up")
        for each in addresses:
            more = ["nodad"] if ":" in each else []
            self.ip(space, "addr", "add", each, "dev", device, *more)

    def _forward(self) -> None:
        """Switch forwarding on: each namespace has its own switch, this one is nobody else's."""
        self.alone()
        for switch in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            script = f"echo 1 >/proc/sys/net/{switch}"
            self.run("host", ["sh", "-c", script])

    def _settle(self) -> None:
        """Until no address is tentative (RFC 4862), so that what changes later is not our doing."""
        deadline = time.monotonic() + 10 * self.arena.home.scale
        while " tentative " in self.ip("host", "-6", "addr"):
            if time.monotonic() > deadline:
                raise OSError("an IPv6 address stays tentative")
            time.sleep(0.05)

    def _canary(self, space: str) -> None:
        program = self.arena.compiled("canary.c")
        with open(self.folder / space, "wb") as log:
            self.canaries[space] = subprocess.Popen(
                [str(program), LAN4, LAN6, *map(str, PORTS)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=self.entering(space, mortal=True),
            )
        deadline = time.monotonic() + 10 * self.arena.home.scale
        while b"ready" not in self.record(space):
            if time.monotonic() > deadline or self.canaries[space].poll() is not None:
                raise OSError(f"the canary does not listen: {self.record(space)!r}")
            time.sleep(0.02)

    # -- in there

    def entering(self, space: str, *, mortal: bool = False) -> Callable[[], None]:
        assert self.ground is not None
        return self.ground.entering(self.spaces[space], mortal=mortal)

    def entering_as_we_are(self, space: str) -> Callable[[], None]:
        assert self.ground is not None
        return self.ground.entering_as_we_are(self.spaces[space])

    def run(
        self,
        space: str,
        command: Sequence[str],
        data: bytes = b"",
        seconds: float = 20,
        keep: Sequence[int] = (),
    ) -> str:
        """What it printed. Raises OSError with what it said otherwise."""
        done = subprocess.run(
            command,
            input=data,
            capture_output=True,
            timeout=seconds * self.arena.home.scale,
            env={**os.environ, "PATH": SEARCH},
            pass_fds=keep,
            preexec_fn=self.entering(space, mortal=True),
        )
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-300:]
            raise OSError(f"{' '.join(command[:6])}: {said or done.returncode}")
        return done.stdout.decode(errors="replace")

    def ip(self, space: str, *words: str) -> str:
        return self.run(space, ["ip", *words])

    # -- what must be true before anything is sent

    def alone(self, *more: str) -> None:
        """Raises Unproved unless nothing here, nor in the namespaces at the paths `more`, leads
        out, and nothing of ours was put where we come from."""
        own = {os.stat("/proc/self/ns/net").st_ino, _inode_of_first()}
        with contextlib.ExitStack() as opened:
            spaces = dict(self.spaces)
            for path in more:
                spaces[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, spaces[path])
            for name, descriptor in spaces.items():
                if os.fstat(descriptor).st_ino in own:
                    raise Unproved(f"{name} is the host's own network: nothing was attacked")
                self._leads_nowhere(name, links(descriptor))
        if new := links(None).keys() - self._outside.keys():
            raise Unproved(
                f"{', '.join(sorted(new))} appeared on the host itself meanwhile, which may lead"
                " out: nothing was attacked"
            )

    def _leads_nowhere(self, name: str, found: dict[str, str]) -> None:
        for device, kind in found.items():
            if kind not in KINDS and device not in self._fresh:
                raise Unproved(
                    f"the namespace {name} has {device}, a {kind or 'real device'} that may lead"
                    " out of the host: nothing was attacked"
                )

    # -- knocking

    def words(self, wanted: Iterable[Door]) -> list[tuple[Door, str]]:
        """A word for each door, that nobody has said before."""
        made = [(door, f"w{self.tag}{len(self._words) + n}") for n, door in enumerate(wanted)]
        self._words.update((word, door) for door, word in made)
        return made

    def knock(self, space: str, wanted: Iterable[Door], wait: int = 600) -> set[Door]:
        """Which of these doors are heard by a canary when knocked at from this namespace."""
        marks = self.marks()
        lines = "".join(f"{door} {word}\n" for door, word in self.words(wanted))
        program = str(self.arena.compiled("knock.c"))
        self.run(space, [program, str(int(wait * self.arena.home.scale))], lines.encode())
        return set(self.heard(marks).doors)

    def record(self, space: str) -> bytes:
        with contextlib.suppress(OSError):
            return (self.folder / space).read_bytes()
        return b""

    def marks(self) -> dict[str, int]:
        """Where the canaries' records end now."""
        for space, canary in self.canaries.items():
            if canary.poll() is not None:
                raise Failed(f"the canary of {space} has died: nothing was proved")
        return {space: len(self.record(space)) for space in self.canaries}

    def heard(self, since: dict[str, int], record: bytes | None = None) -> Heard:
        """What the canaries here (or one whose record is given) heard since those marks."""
        found = Heard()
        texts = (
            [self.record(space)[mark:] for space, mark in since.items()]
            if record is None
            else [record]
        )
        streams, worded = [], set()
        for line in b"\n".join(texts).decode(errors="replace").splitlines():
            kind, address, port, peer, word = (*line.split(), *[""] * 5)[:5]
            if word == "-":
                streams.append((kind, address, port, peer))
            elif word == "query":
                found.queries += 1
            elif word in self._words:
                found.doors.setdefault(self._words[word], set()).add(f"{address} {port}")
                worded.add((kind, address, port, peer))
            elif word:
                found.strangers.append(line)
        found.strangers += [" ".join(each) for each in streams if each not in worded]
        return found

    # -- what the host itself is like

    def state(self) -> set[str]:
        """Links, addresses, routes, rules, tables and settings of `host`, a line for each."""
        found = {f"link {name} {kind}" for name, kind in links(self.spaces["host"]).items()}
        for family in ("-4", "-6"):
            for words in (("-o", "addr"), ("route", "show", "table", "all"), ("rule",)):
                found |= {
                    " ".join([family, words[-1], *line.split()])
                    for line in self.ip("host", family, *words).splitlines()
                }
        folders = "/proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/ip_forward"
        script = f"grep -rs . {folders}; command -v nft >/dev/null && nft list ruleset; true"
        return found | set(self.run("host", ["sh", "-c", script]).splitlines())

    def sees_a_change(self) -> bool:
        """Whether `state` differs while there is one more link, and then no more."""
        before = self.state()
        self.ip("host", "link", "add", "seen0", "type", "bridge")
        during = self.state()
        self.ip("host", "link", "del", "seen0")
        return during > before == self.state()

    def listeners(self) -> dict[str, int]:
        """Everything that listens, or could be sent to, at an address of `host`, and the inode of
        its socket: proc_net(5)."""
        found = {}
        folder = Path(f"/proc/{self.canaries['host'].pid}/net")
        for name in ("tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6"):
            with contextlib.suppress(FileNotFoundError):
                for line in (folder / name).read_text().splitlines()[1:]:
                    words = line.split()
                    if not name.startswith("tcp") or words[3] == "0A":  # TCP_LISTEN
                        address, _, port = words[1].rpartition(":")
                        found[f"{name} {address} {int(port, 16)}"] = int(words[9])
        return found

    def close(self) -> None:
        for canary in self.canaries.values():
            canary.kill()
            canary.wait()
        self.canaries.clear()
        for descriptor in self.spaces.values():
            os.close(descriptor)
        self.spaces.clear()
        if self.ground is not None:
            self.ground.close()


def _inode_of_first() -> int:
    try:
        return os.stat("/proc/1/ns/net").st_ino
    except OSError:
        return 0


def pin(name: str) -> str:
    """The file that keeps the namespace of this name, as ip-netns(8) does it."""
    return f"/run/netns/{os.path.basename(name)}"


def pinned(name: str) -> bool:
    return bool(name) and os.path.lexists(pin(name))
