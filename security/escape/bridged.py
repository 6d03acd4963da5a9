"""Two sandboxes with `network: bridge` in the network of lan.py, and what they knock at in rounds.

One sandbox, `n1`, attacks under each egress; the other, `n2`, has a canary of its own inside.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from . import frames, lan, places, proc
from .arena import HERE, Arena
from .home import BoxError
from .lan import Door, Heard, Lan, doors
from .report import Failed, Unproved

NAMES = ("localhost", "host.containers.internal", "host.docker.internal", "gateway.docker.internal")
# A frame: its door, source, source's MAC, the MAC it goes to, and what is special about it.
Sent = tuple[Door, str, str, str, str]
LISTENS_SECONDS = 10
WAIT = 1500  # milliseconds that a guest waits for answers


@dataclass(frozen=True)
class Guest:
    """What a guest knows of its own network. Its word: it only says where to knock."""

    device: str
    mac: str
    four: str
    six: str
    gate4: str
    gate6: str
    gate_mac: str
    link_local: tuple[str, ...]
    named: tuple[str, ...]
    """Addresses that the names of the host lead to."""


@dataclass
class Round:
    """What was heard while n1 knocked under one egress."""

    here: Heard
    """By the canaries of host and world."""
    neighbour: Heard
    """By the canary in n2."""
    asked: set[Door] = field(default_factory=set)


class Bridged:
    """The two sandboxes. `close` is called by the arena in the end."""

    def __init__(self, arena: Arena) -> None:
        folder = arena.folder / "net"
        folder.mkdir(mode=0o755)
        self.lan = Lan(arena)
        self.lan.build()
        arena.closing.append(self.close)
        self.before = self.lan.state()
        self.listening = self.lan.listeners().keys()
        self.arena = Arena(
            arena.home.box, folder, isolation=arena.isolation, backend=arena.backend,
            accel=arena.accel, scale=arena.home.scale, ready_made=arena.programs,
        )  # fmt: skip
        self.arena.home.entering = self.lan.entering_as_we_are("host")
        self.arena.home.start({"resolver": lan.RESOLVER})
        self.egress: object = "all"
        self._start()
        self._alone()
        self.n1, self.n2 = self._guest("n1", NAMES), self._guest("n2", ())
        # the arena's own: compiled once, and perhaps elsewhere
        for name, program in (
            ("n1", arena.compiled("knock.c")),
            ("n2", arena.compiled("canary.c")),
        ):
            self.arena.home.put(name, f"/run/{program.name}", program.read_bytes(), "0700")
        ports = " ".join(map(str, lan.PORTS))
        canary = f"/run/canary 192.0.2.1 2001:db8::1 {ports}; echo ended by itself: $?"
        self.arena.home.exec("n2", f"{{ {canary}; }} </dev/null >/run/heard 2>&1 &")

    def _start(self) -> None:
        try:
            self.arena.sandbox("n1", "n2", network="bridge", egress="all")
        except BoxError as error:
            # What cannot be had cannot be attacked; the reason is box's own.
            raise Unproved(f"not attacked: no sandbox with network: bridge: {error}") from None
        self.spaces = self._spaces("n1") + self._spaces("n2")

    def _spaces(self, name: str) -> list[str]:
        """The names of namespaces that `box get` shows of a sandbox."""
        shown: dict[str, Any] = self.arena.home.get(name).get("network") or {}
        return [word.strip(",;") for word in str(shown.get("namespaces", "")).split()]

    def _guest(self, name: str, names: Sequence[str]) -> Guest:
        said = self.arena.home.exec(name, (HERE / "card.sh").read_text(), *names, check=False)
        found = self.arena.answers(name, said.stdout)
        if found.get("finished") != "yes":
            raise Failed(f"the guest of {name} did not answer: {said.stdout[-200:]!r}")
        named = {_address(word) for n in names for word in found.get(f"name.{n}", "").split()}
        link_local = {_address(word) for word in found.get("links", "").split()}
        for key in ("four", "six", "gate4", "gate6"):
            if not _address(found.get(key, "")):
                raise Failed(f"{name} has no address {key}: {found.get(key)!r}")
        return Guest(
            found["device"][:15], found["mac"], found["four"], found["six"], found["gate4"],
            found["gate6"], found["gatemac"], tuple(sorted(link_local - {""})),
            tuple(sorted(named - {""})),
        )  # fmt: skip

    # -- rounds

    def knock(self, wanted: Iterable[Door], wait: int = WAIT) -> Round:
        """n1 knocks at all of them at once."""
        self._alone()
        asked = list(wanted)
        marks, mark = self.lan.marks(), len(self._neighbour())
        lines = "".join(f"{door} {word}\n" for door, word in self.lan.words(asked))
        milliseconds = str(int(wait * self.arena.home.scale))
        done = self.arena.home.run(
            "exec", "-i", "n1", "--", "/run/knock", milliseconds, data=lines.encode(), seconds=60
        )
        if b"knocked" not in done.stdout:
            raise Failed(f"the guest did not knock: {(done.stdout + done.stderr)[-200:]!r}")
        return Round(
            self.lan.heard(marks), self.lan.heard({}, self._neighbour()[mark:]), set(asked)
        )

    def _alone(self) -> None:
        """Also of what `box` made: the namespaces it shows, and those that its VMMs and whoever
        helps them really are in."""
        pids = self.processes()
        shown = [lan.pin(name) for name in self.spaces if lan.pinned(name)]
        self.lan.alone(*(f"/proc/{pid}/ns/net" for pid in pids), *shown)

    def processes(self) -> list[int]:
        """VMMs and helpers of both."""
        vmms = {name: self.arena.vmm(name) for name in ("n1", "n2")}
        helping = [pid for name, vmm in vmms.items() for pid in self.arena.helpers(name, vmm)]
        return [*vmms.values(), *helping]

    def carriers(self) -> set[int]:
        """Inodes of the sockets of whoever carries a guest's packets as the user's own (pasta)."""
        there = f"net:[{os.fstat(self.lan.spaces['host']).st_ino}]"
        carrying = [pid for pid in self.processes() if proc.namespace(pid, "net") == there]
        held = [each for pid in carrying for each in proc.descriptors(pid)]
        return {each.inode for each in held if each.kind == "socket"}

    def _neighbour(self) -> bytes:
        """The record of the canary in n2."""
        deadline = time.monotonic() + LISTENS_SECONDS * self.arena.home.scale
        while True:
            said = self.arena.home.run("exec", "n2", "--", "cat", "/run/heard").stdout
            if said.startswith(b"ready") or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        if not said.startswith(b"ready") or b"ended by itself" in said:
            raise Failed(f"the canary in n2 does not listen: {said[-200:]!r}")
        return said

    def let(self, egress: object) -> None:
        """Put this egress into force on the running n1."""
        if egress == self.egress:
            return
        pid = self.arena.vmm("n1")
        text = self.arena.boxfile(network="bridge", egress=egress)
        self.arena.home.declare({"n1": text}, "--wait")
        self.egress = egress
        if self.arena.vmm("n1") != pid:
            raise Failed("a changed egress replaced the VMM, which docs/network.md denies")

    def control(self) -> set[Door]:
        """Doors at which a canary is reached by whoever stands beside the sandboxes, and, where
        packets are carried by a process of the host, by one that stands there."""

        def knock() -> set[Door]:
            self.lan.alone()
            public = (lan.PUBLIC4, lan.PUBLIC6, lan.OTHER4, lan.OTHER6, lan.RESOLVER)
            there = doors((*lan.HOST, *public, *lan.PRIVATE), lan.PORTS)
            found = self.lan.knock("beside", there)
            if not self.arena.root:
                found &= self.lan.knock("host", there)
            return found | self.lan.knock("host", doors(("127.0.0.1", "::1"), lan.PORTS))

        return self.arena.once("control", knock)

    # -- from the VMM's own namespace

    def send(self, name: str, sent: Iterable[Sent]) -> Round:
        """Put these frames on every device in there."""
        pid = self.arena.vmm(name)
        self._alone()
        marks, mark = self.lan.marks(), len(self._neighbour())
        made, asked = [], []
        for door, source, source_mac, target_mac, label in sent:
            told = Door(f"{door.kind}{label}", door.address, door.port)
            ((_, word),) = self.lan.words([told])
            asked.append(told)
            made.append(
                frames.Datagram(source, door.address, door.port, word, source_mac, target_mac)
            )
        said = places.start("network", pid, partial(frames.send, made)).results()
        if not any(count == len(made) for _, count in said):
            raise Failed(f"the frames could not be sent: {said}")
        self._settle()
        return Round(
            self.lan.heard(marks), self.lan.heard({}, self._neighbour()[mark:]), set(asked)
        )

    def _settle(self) -> None:
        """Until what was sent before has arrived: one more word, by the host itself."""
        door = Door("udp", "127.0.0.1", lan.PORTS[-1])
        for _ in range(20):
            if door in self.lan.knock("host", [door], 200):
                return
        raise Failed("the canary of the host does not answer any more")

    def close(self) -> list[str]:
        home = getattr(self, "arena", None)
        left = home.close() if home is not None else []
        self.lan.close()
        return left


def _address(word: str) -> str:
    """An address as the standard library writes it, or nothing: a guest's word."""
    try:
        return str(ipaddress.ip_address(word))
    except ValueError:
        return ""
