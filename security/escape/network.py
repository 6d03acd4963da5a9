"""What a guest reaches through its network: nothing but what its Boxfile allows, in IPv4 and IPv6.

Everything happens in network namespaces without an uplink (lan.py). A door counts as shut when a
canary that is reached from beside the sandboxes did not hear the knock, by its own record, and the
guest reached what it may reach at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from . import frames, lan, places, proc
from .arena import Arena
from .bridged import Bridged, Round, Sent
from .lan import Door, doors
from .report import Failed, check

LOOPBACK = ("127.0.0.1", "127.0.0.53", "::1", "0.0.0.0", "::")
EVERYBODY = ("255.255.255.255", "224.0.0.1", "ff02::1%{device}", "ff02::2%{device}")
FREE = doors((lan.PUBLIC4, lan.PUBLIC6, lan.OTHER4, lan.OTHER6))
RANGE = "192.168.9.9"  # one of lan.PRIVATE, in the same range as the host's own LAN
NOBODY = "02:00:00:00:00:77"
UNKNOWN4, UNKNOWN6 = "198.51.100.77", "2001:db8:66::77"


def bridged(arena: Arena) -> Bridged:
    """The sandboxes under attack, or again the reason why there are none."""
    return arena.once("bridged", lambda: Bridged(arena))


def _own(made: Bridged) -> list[Door]:
    """Doors of its own link: the gateway, and what everybody on a link listens to."""
    guest = made.n1
    everybody = [each.format(device=guest.device) for each in EVERYBODY]
    reach = [f"{each}%{guest.device}" for each in guest.link_local]
    datagrams = [door for door in doors(everybody, lan.PORTS) if door.kind == "udp"]
    return [*doors((guest.gate4, guest.gate6, *reach), lan.PORTS), *datagrams]


def _host(made: Bridged) -> list[Door]:
    return doors(dict.fromkeys((*lan.HOST, *LOOPBACK, *made.n1.named)))


def _neighbour(made: Bridged) -> list[Door]:
    return doors((made.n2.four, made.n2.six))


def _all(arena: Arena) -> Round:
    """What n1 reaches with `egress: all`, in one round of knocks."""
    made = bridged(arena)

    def knock() -> Round:
        made.let("all")
        return made.knock(
            [*FREE, *_host(made), *doors(lan.PRIVATE), *_own(made), *_neighbour(made)]
        )

    return arena.once("egress all", knock)


def _list(made: Bridged) -> list[str]:
    """An egress that tries to open more than a list may."""
    return [
        f"{lan.PUBLIC4}:443", f"[{lan.PUBLIC6}]:443", f"{lan.UP4}:443",
        "192.168.0.0/16:443", "0.0.0.0/0:80", "[::/0]:80",
        f"{made.n2.four}:443", f"[{made.n2.six}]:443",
    ]  # fmt: skip


OPENED = {
    *doors((lan.PUBLIC4, lan.PUBLIC6, lan.UP4, RANGE), (443,)),
    *doors((lan.PUBLIC4, lan.OTHER4, lan.RESOLVER, lan.PUBLIC6, lan.OTHER6), (80,)),
}


def _listed(arena: Arena) -> Round:
    """What n1 reaches with that list."""
    made = bridged(arena)

    def knock() -> Round:
        made.let(_list(made))
        free = (lan.PUBLIC4, lan.PUBLIC6, lan.OTHER4, lan.OTHER6, lan.RESOLVER)
        asked = doors((*free, *lan.HOST, *lan.PRIVATE), lan.PORTS)
        return made.knock([*asked, *_own(made), *_neighbour(made)])

    return arena.once("egress list", knock)


def _shut(found: Round, attacked: Iterable[Door], control: Collection[Door] | None = None) -> int:
    """How many of these doors stayed shut. Failed when one did not, or when it proves nothing."""
    tried = [door for door in attacked if door in found.asked]
    for door in tried:
        for where in sorted(found.here.doors.get(door, ())):
            raise Failed(f"{door} was reached from the guest: a canary at {where} heard it")
    if found.here.strangers:
        raise Failed(f"a canary heard what nobody was to say: {found.here.strangers[0]}")
    if control is not None and (deaf := [door for door in tried if door not in control]):
        raise Failed(f"{deaf[0]} is not even reached from beside the sandbox: it proves nothing")
    if not tried:
        raise Failed("nothing was attacked")
    return len(tried)


def _open(found: Round, wanted: Iterable[Door]) -> int:
    """How many doors were reached; Failed when one of them was not, so that nothing is proved."""
    missing = [str(door) for door in wanted if door not in found.here.doors]
    if missing:
        raise Failed(f"{missing[0]} is allowed and was not reached: the silence proves nothing")
    return len(list(wanted))


@check(
    "network.host",
    "no address of the host is reached from a guest: loopback, LAN, uplink, the names it is given",
)
def host(arena: Arena) -> str:
    made, found = bridged(arena), _all(arena)
    opened = _open(found, FREE)
    local = [door for door in _host(made) if door.address in LOOPBACK]
    real = [door for door in _host(made) if door.address in lan.HOST]
    named = [door for door in _host(made) if door not in (*local, *real)]
    count = _shut(found, real, made.control()) + _shut(found, local)
    count += _shut(found, named) if named else 0
    names = ", ".join(made.n1.named) or "nothing"
    return (
        f"{count} knocks, none heard by a canary on all of the host's addresses; from beside all"
        f" of them are, and the guest reached {opened} open doors. The host's names led to {names}"
    )


@check(
    "network.private",
    "no metadata service, private range or other tool's way to the host is reached from a guest",
)
def private(arena: Arena) -> str:
    made, found = bridged(arena), _all(arena)
    opened = _open(found, FREE)
    count = _shut(found, doors(lan.PRIVATE), made.control())
    return (
        f"{count} knocks at {', '.join(lan.PRIVATE)}: none heard, from beside all of them; the"
        f" guest reached {opened} open doors"
    )


@check("network.gateway", "the gateway and DNS address lead to the resolver, port 53, alone")
def gateway(arena: Arena) -> str:
    made, found = bridged(arena), _all(arena)
    names = set(doors((made.n1.gate4,), (53,)))
    for door in sorted(names, key=str):
        where = found.here.doors.get(door, set())
        if where and where != {f"{lan.RESOLVER} 53"}:
            raise Failed(f"{door} leads to {', '.join(sorted(where))}, which is not the resolver")
    count = _shut(found, set(_own(made)) - names)
    asked = "leads to the resolver" if _open(found, names) else ""
    return (
        f"{made.n1.gate4} port 53 {asked}; {count} knocks at it, at {made.n1.gate6}, at link-local,"
        " broadcast and multicast addresses were heard by nobody"
    )


@check("network.neighbour", "no sandbox reaches another, whatever its egress names")
def neighbour(arena: Arena) -> str:
    made, found = bridged(arena), _all(arena)
    listed = _listed(arena)
    count = 0
    for each in (found, listed):
        for door in each.neighbour.doors:
            raise Failed(f"{door} in n2 was reached from n1")
        if each.neighbour.strangers:
            raise Failed(f"n2's canary heard {each.neighbour.strangers[0]}")
        count += _shut(each, _neighbour(made))
        _open(each, doors((lan.PUBLIC4, lan.PUBLIC6), (443,)))
    guest = made.n2
    behind = [
        (Door("udp", to, 443), source, guest.gate_mac, guest.mac, " from its own link")
        for to, source in ((guest.four, guest.gate4), (guest.six, guest.gate6))
    ]
    heard = made.send("n2", behind).neighbour.doors
    if len(heard) != len(behind):
        raise Failed("n2's canary does not even hear its own link: the silence proves nothing")
    return (
        f"{count} knocks of n1 at n2, also with an egress that names it; n2's canary heard none,"
        " and hears what comes from its own link, in IPv4 and IPv6"
    )


@check("network.egress_list", "with a list exactly the addresses and ports on it are reached")
def egress_list(arena: Arena) -> str:
    made, found = bridged(arena), _listed(arena)
    others = {*OPENED, *_own(made), *_neighbour(made)}
    attacked = [door for door in found.asked if door not in others]
    count = _shut(found, attacked, made.control()) + _shut(found, _own(made))
    reached = _open(found, OPENED)
    if found.here.queries:
        raise Failed("a question for a name got out, which is a way out")
    return (
        f"{reached} doors on the list were reached, {count} others not: no address of the host or"
        " private range by a wider entry, no name resolution"
    )


@check(
    "network.vmm",
    "a VMM that broke out sends no more through its network namespace than its guest may",
)
def vmm(arena: Arena) -> str:
    made = bridged(arena)
    made.let(_list(made))
    one, two = made.n1, made.n2
    as_guest = (one.mac, one.gate_mac)
    four, six = Door("udp", lan.PUBLIC4, 443), Door("udp", lan.PUBLIC6, 443)

    def sent(
        to: Iterable[Door], source4: str, source6: str, macs: tuple[str, str], label: str
    ) -> list[Sent]:
        return [(d, source6 if ":" in d.address else source4, *macs, label) for d in to]

    there = (lan.OTHER4, lan.OTHER6, *lan.HOST, *lan.PRIVATE, "127.0.0.1", "::1", two.four, two.six)
    beyond = [d for d in doors(there, (53, 443)) if d.kind == "udp" and d not in OPENED]
    forged = [
        *sent((four, six), lan.LAN4, lan.LAN6, as_guest, " from the host's address"),
        *sent((four, six), two.four, two.six, as_guest, " from n2's address"),
        *sent((four, six), one.gate4, one.gate6, as_guest, " from the gateway's address"),
        *sent((four, six), UNKNOWN4, UNKNOWN6, as_guest, " from nobody's address"),
        *sent((four, six), "127.0.0.1", "::1", as_guest, " from loopback"),
        *sent((four, six), one.four, one.six, (NOBODY, one.gate_mac), " by another MAC"),
        *sent((four, six), two.four, two.six, (two.mac, one.gate_mac), " as n2"),
    ]  # fmt: skip
    right = sent((four, six), one.four, one.six, as_guest, " as its guest")
    more = sent(beyond, one.four, one.six, as_guest, " beyond the list")
    done = made.send("n1", [*more, *forged, *right])
    allowed = {Door(f"udp{label}", door.address, door.port) for door, *_, label in right}
    _open(done, allowed)
    count = _shut(done, done.asked - allowed)
    if done.neighbour.doors:
        raise Failed(f"{next(iter(done.neighbour.doors))} was heard by n2")
    as_itself = _as_itself(made)
    arena.confinement["network bridge"] = "its egress alone"
    return (
        f"{count} frames put on its links by hand, to other doors and from forged addresses, were"
        f" heard by nobody, the two a guest may send were; {as_itself}"
    )


def _as_itself(made: Bridged) -> str:
    """As the VMM's user in its namespaces, with ordinary sockets."""
    wanted = doors((lan.PUBLIC4, lan.PUBLIC6, lan.LAN4, lan.LAN6, "127.0.0.1", "::1"), (443,))
    marks = made.lan.marks()
    told = [(d.kind, d.address, d.port, word) for d, word in made.lan.words(wanted)]
    place = partial(frames.plain, told)
    outcomes = places.start("namespaces", made.arena.vmm("n1"), place).results()
    heard = made.lan.heard(marks)
    for door in heard.doors:
        raise Failed(f"{door} was reached with a plain socket in the VMM's namespaces")
    if len(outcomes) != len(told):
        raise Failed(f"only {len(outcomes)} of {len(told)} sockets were tried")
    return f"its own sockets answer {', '.join(sorted(set(outcomes)))}"


@check("network.egress_none", "with egress: none nothing at all is reached")
def egress_none(arena: Arena) -> str:
    made = bridged(arena)
    _open(_all(arena), FREE)  # the guest can knock, and is heard where it may be

    def knock() -> Round:
        made.let("none")
        return made.knock(
            [*FREE, *doors((*lan.HOST, *lan.PRIVATE)), *_own(made), *_neighbour(made)]
        )

    found = arena.once("egress none", knock)
    count = _shut(found, [*FREE, *doors((*lan.HOST, *lan.PRIVATE))], made.control())
    count += _shut(found, [*_own(made), *_neighbour(made)])
    if found.neighbour.doors or found.here.queries:
        raise Failed(f"{found.here.queries} questions for a name got out, or n2 was reached")
    return f"{count} knocks, with the {len(FREE)} that egress: all lets through: none was heard"


@check("network.api", "box itself listens at no IP address: its API is no port to be reached")
def api(arena: Arena) -> str:
    made = bridged(arena)
    if not made.listening:
        raise Failed("not even the canaries are seen to listen: it proves nothing")
    carried = made.carriers()
    there = made.lan.listeners()
    carried |= made.carriers()
    datagrams = {each for each, inode in there.items() if inode in carried and each[:3] == "udp"}
    if new := there.keys() - made.listening - datagrams:
        raise Failed(f"since the controller runs somebody listens at {', '.join(sorted(new))}")
    more = f" and {len(datagrams)} that carry guests' datagrams" if not arena.root else ""
    return f"the {len(made.listening)} sockets of the canaries{more} are all that listen here"


@check(
    "network.removed",
    "the host's own links, routes, rules and settings stay as they were, and nothing is left",
)
def removed(arena: Arena) -> str:
    made = bridged(arena)
    during = made.lan.state()
    if lost := sorted(made.before - during):
        raise Failed(f"with sandboxes running the host lacks: {lost[0]} ({len(lost)} lines)")
    added = sorted(during - made.before)
    if arena.root and not added:
        raise Failed("two bridged sandboxes added nothing to the host: nothing was read")
    if not arena.root and added:
        raise Failed(f"sandboxes of an ordinary user's added to the host: {added[0]}")
    if not arena.root and not made.lan.sees_a_change():
        raise Failed("not even a new link on the host is seen: nothing was read")
    ran = {pid: proc.start_time(pid) for pid in made.processes()}
    made.arena.home.remove("n1", "n2")
    if lasting := [pid for pid, began in ran.items() if _runs(pid, began)]:
        raise Failed(f"after their deletion process {lasting[0]} of them still runs")
    after = made.lan.state()
    if left := sorted(after - made.before):
        raise Failed(f"after their deletion there is still: {left[0]} ({len(left)} lines)")
    if lost := sorted(made.before - after):
        raise Failed(f"after their deletion the host lacks: {lost[0]}")
    if pinned := [name for name in made.spaces if lan.pinned(name)]:
        raise Failed(f"after their deletion there are still the namespaces {', '.join(pinned)}")
    more = f"{len(added)} more while they ran are gone" if added else "none was added"
    return (
        f"{len(made.before)} lines of links, addresses, routes, rules and settings are the same"
        f" before, during and after; {more}, and their {len(ran)} processes ended"
    )


def _runs(pid: int, began: int) -> bool:
    try:
        return proc.start_time(pid) == began and proc.status(pid)["State"][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
