"""From within the very jail: a program of ours that the product launched in a VMM's place.

What it may not do it really tries, under the filter that is in force on it: each refused call ends
a child of it, made while we suspend the filter of its first thread (ptrace(2), root only). Every
attempt on others is made by the same program without a jail as well, where it must succeed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

from . import attack, calls, outside, places, proc, standin
from .arena import Arena
from .between import target_of
from .report import Failed, Unproved, check
from .standin import DONE, Caller, StandIn, Word, inout, out, result

NAME = "jailed"
AT_FDCWD = -100
O_CLOEXEC, O_NONBLOCK, O_DIRECTORY = os.O_CLOEXEC, os.O_NONBLOCK, os.O_DIRECTORY
ENOSYS, ESRCH = -38, -3
GETDENTS = 16384
# What there is in its root besides itself, which needs no library.
SEEN = ("/kernel", "/initrd")
FOREIGN = (
    "/etc/passwd", "/etc/shadow", "/proc/self/status", "/proc/1/environ", "/sys/kernel/vmcoreinfo",
    "/dev/null", "/dev/mem", "/dev/kmsg", "/usr/bin/env", "/run/box", "/var/lib/box", "/root",
    "/../../../../../../etc/passwd", "/proc/1/root/etc/passwd", "/proc/self/root/etc/passwd",
)  # fmt: skip
# Without arguments they wait for ever: with these they return at once.
AT_ONCE: dict[int, tuple[Word, ...]] = {
    23: (0, 0, 0, 0, bytes(16)),  # select
    270: (0, 0, 0, 0, bytes(16), 0),  # pselect6
    271: (0, 0, bytes(16), 0, 0),  # ppoll
}
# Ends of what a call made by an old number is: getpid by the 32-bit entry and as x32.
OLD_ENTRY, X32 = "i20", 0x40000000 | 39


def _probe(arena: Arena) -> StandIn:
    return standin.started(arena, NAME)


@check("jail.launch", "a program in the VMM's place is put into the very jail of a real VMM")
def launch(arena: Arena) -> str:
    probe, real = _probe(arena), arena.vmm("b")
    if differences := standin.same_jail(arena, probe, real):
        raise Failed(f"process {probe.pid} in the VMM's place: {'; '.join(differences)}")
    user = proc.status(probe.pid)["Uid"].split()[0]
    theirs = proc.status(real)["Uid"].split()[0]
    if user == "0" or (arena.isolation == "strict" and user == theirs):
        raise Failed(f"it runs as user {user}, the VMM of b as {theirs}")
    for each in proc.NAMESPACES:
        if proc.namespace(probe.pid, each) in (
            proc.namespace("self", each),
            proc.namespace(real, each),
        ):
            raise Failed(f"it shares its {each} namespace with the host or with b")
    shown = "capabilities, limits and filter" if arena.root else "capabilities and limits"
    return f"process {probe.pid}, user {user}: its {shown} are those of b's VMM, process {real}"


@check("jail.calls", "the filter in force ends whoever makes a harmful call, by whichever entry")
def refused_calls(arena: Arena) -> str:
    """Refused is what ends the child by SIGSYS, or is answered ENOSYS, as if there were no such
    call: any other errno would be the kernel's answer to a call that got through to it.
    """
    probe = _probe(arena)
    if not arena.root:
        return _some_calls(arena, probe)
    with probe.calls() as caller:
        if (alive := caller.make((39,))).word != DONE:
            raise Failed(f"not even getpid can be tried: {alive.word}")
        answers: dict[str, int] = {}
        for word, (number, arguments) in calls.HARMFUL.items():
            how = _refusal(caller, (number, *arguments))
            if not how:
                said = _said(caller, number, arguments)
                raise Failed(f"{word} is not refused to process {probe.pid}: {said}")
            answers[how] = answers.get(how, 0) + 1
        for word, call in (("the 32-bit entry", (OLD_ENTRY,)), ("x32", (X32,))):
            if not _refusal(caller, call):
                raise Failed(f"getpid by {word} is not refused to process {probe.pid}")
        through = [
            n for n in range(calls.LAST + 1) if not _refusal(caller, (n, *AT_ONCE.get(n, ())))
        ]
        if (alive := caller.make((39,))).word != DONE:
            raise Failed(f"the program in the VMM's place did not live through it: {alive.word}")
    ends = ", ".join(f"{count} by {how}" for how, count in sorted(answers.items()))
    return (
        f"{len(calls.HARMFUL)} harmful calls made in the jail of process {probe.pid}, all refused:"
        f" {ends}; so is every other entry; of {calls.LAST + 1} numbers {len(through)} get through"
    )


def _refusal(caller: Caller, call: tuple[Word, ...]) -> str:
    """How a call was refused; empty when it reached the kernel."""
    found = caller.make(call)
    if found.ended == "signal 31":
        return "SIGSYS"
    return "ENOSYS" if found.values and found.values[0][0] == ENOSYS else ""


def _said(caller: Caller, number: int, arguments: tuple[int, ...]) -> str:
    found = caller.make((number, *arguments))
    return f"it answers {found.values[0][0]}" if found.values else f"its child {found.ended}"


def _some_calls(arena: Arena, probe: StandIn) -> str:
    """Without root each refused call costs the whole program: one is tried, and what can be."""
    with probe.calls() as caller:
        if caller.make((39,), where="self").word != DONE:
            raise Failed("not even getpid can be made in the VMM's place")
        for word in ("clone3", "io_uring_setup"):  # answered, because programs do without them
            number, arguments = calls.HARMFUL[word]
            if _first(caller, number, *arguments) != ENOSYS:
                raise Failed(f"{word} is not refused to process {probe.pid}")
        found = caller.make((165,), where="self")
    if found.ended != "lost":
        raise Failed(f"mount is not refused to process {probe.pid}: {found.word}")
    arena.forget(f"stand-in {NAME}")
    raise Unproved(
        f"getpid was answered, clone3 and io_uring_setup were not, and mount ended process"
        f" {probe.pid}; the other {len(calls.HARMFUL) - 3} harmful calls were not tried: only root"
        " may suspend its filter, so each would cost a program"
    )


@check("jail.identity", "seen from inside of it: no user of ours, no right, no other process")
def identity(arena: Arena) -> str:
    """Read by calls of its own, made with its filter suspended: what it would have without it."""
    probe = _probe(arena)
    if not arena.root:
        return _identity_in_parts(arena, probe)
    with probe.calls() as caller:
        users = _numbers(caller, 118) + _numbers(caller, 120)
        groups = caller.make((115, 0, 0), where="self").values[0][0]
        sets = caller.make((125, struct.pack("<II", 0x20080522, 0), out(24)), where="self")
        words = struct.unpack("<6I", sets.values[0][1][0]) if sets.values[0][0] == 0 else ()
        bounding = [n for n in range(64) if _first(caller, 157, 23, n) == 1]
        ambient = [n for n in range(64) if _first(caller, 157, 47, 1, n) == 1]
        number, parent = _first(caller, 39), _first(caller, 110)
        others = [n for n in range(2, 400) if _first(caller, 62, n, 0) != ESRCH]
        devices = _devices(caller)
        node = caller.make((63, out(390)), where="self").values[0][1][0][65:130].split(b"\0")[0]
    shown = node.decode(errors="replace")
    outside = proc.status(probe.pid)["Uid"].split()[0]
    if set(users) != {int(outside)} or 0 in users:
        raise Failed(
            f"it sees itself as the users and groups {users}, from outside it is {outside}"
        )
    if groups or len(words) != 6 or any(words) or bounding or ambient:
        raise Failed(
            f"groups {groups}, capabilities {words}, bounding {bounding}, ambient {ambient}"
        )
    if (number, parent) != (1, 0) or others:
        raise Failed(
            f"it is process {number} of parent {parent} and sees the processes {others[:5]}"
        )
    if devices != ["lo"]:
        raise Failed(f"it sees the network devices {devices}")
    if shown == os.uname().nodename:
        raise Failed(f"it sees the host's name {shown}")
    return (
        f"user {users[0]}, no group, all capability sets empty, process 1 and alone, lo only, its"
        f" host name is {shown}"
    )


def _identity_in_parts(arena: Arena, probe: StandIn) -> str:
    """Without root its filter stays in force, which lets it ask little of this: what it may not
    ask is read of it, or asked by a child of ours in its namespaces, as its user."""
    with probe.calls() as caller:
        users = [_first(caller, number) for number in (102, 107, 104, 108)]  # getuid and so on
        bounding = [n for n in range(64) if _first(caller, 157, 23, n) == 1]
        number, parent = _first(caller, 39), _first(caller, 110)
    if 0 in users or bounding or (number, parent) != (1, 0):
        raise Failed(f"users {users}, bounding set {bounding}, process {number} of {parent}")
    facts = proc.status(probe.pid)
    groups = set(facts["Groups"].split()) - {facts["Gid"].split()[0]} - outside.kvm_group(arena)
    held = {each: facts[each] for each in proc.CAPABILITY_SETS if int(facts[each], 16)}
    if groups or held:
        raise Failed(f"process {probe.pid} in the VMM's place has groups {groups}, rights {held}")
    for each in proc.NAMESPACES:  # else nobody but root gets into them
        if proc.namespace(probe.pid, each) == proc.namespace("self", each):
            raise Failed(f"it shares our {each} namespace, and sees what is in there")
    (others, devices, node) = places.start("namespaces", probe.pid, _look_around).results()
    if others != [1]:
        raise Failed(f"its user in its namespaces reaches the processes {others}, not itself alone")
    if devices != ["lo"] or node == os.uname().nodename:
        raise Failed(f"there are the network devices {devices}, and the host is called {node}")
    return (
        f"user {users[0]} of its namespace, no group, all capability sets empty, process 1 of none;"
        f" a child of ours there reaches it and nobody else, and sees lo only, on {node}"
    )


def _look_around(say: places.Say) -> None:
    """A task for places.start: says processes, network devices and the name of the host."""
    say(attack.reachable(400))
    say([name for _, name in socket.if_nameindex()])
    say(os.uname().nodename)


def _first(caller: Caller, *call: Word) -> int:
    found = caller.make(call, where="self")
    if not found.values:
        raise Failed(f"call {call[0]!r} ended the program in the VMM's place")
    return found.values[0][0]


def _numbers(caller: Caller, number: int) -> list[int]:
    """getresuid or getresgid."""
    found = caller.make((number, out(4), out(4), out(4)), where="self")
    return [int.from_bytes(each, "little") for each in found.values[0][1]]


def _devices(caller: Caller) -> list[str]:
    """Of its network namespace, by number (netdevice(7), SIOCGIFNAME)."""
    found = []
    for index in range(1, 17):
        asked = inout(bytes(16) + struct.pack("<I", index) + bytes(20))
        made = caller.make(
            (41, 2, 2, 0), (16, result(0), 0x8910, asked), (3, result(0)), where="self"
        )
        if made.values[1][0] == 0:
            found.append(made.values[1][1][0].split(b"\0")[0].decode())
    return found


@check("jail.files", "no path of the host leads to a file, and nothing of its root can be written")
def files(arena: Arena) -> str:
    """A path counts only if the same program finds it without a jail."""
    probe = _probe(arena)
    where = "child" if arena.root else "self"
    program = str(standin.program(arena))
    with contextlib.ExitStack() as held:
        host = held.enter_context(standin.unconfined(arena))
        caller = held.enter_context(probe.calls())
        paths = [*FOREIGN, str(arena.canary_file), str(arena.home.path), str(arena.home.runtime)]
        paths = [path for path in paths if _exists(host, path, where) == DONE]
        if "/etc/passwd" not in paths:
            raise Failed("not even the host finds /etc/passwd: the attempts prove nothing")
        for path in paths:
            for way, found in (
                ("sees", _exists(caller, path, where)),
                ("opened", _open(caller, path, os.O_RDONLY, where)),
            ):
                if found == DONE:
                    raise Failed(f"process {probe.pid} in the VMM's place {way} {path}")
        for number in range(3, 9):
            asked = (257, number, b"../../../../etc/passwd\0", os.O_RDONLY | O_NONBLOCK)
            if caller.make(asked, where=where).word == DONE:
                raise Failed(f"descriptor {number} leads out of its root")
        own = [program, *SEEN]
        for path in own:
            if (seen := _exists(caller, path, where)) != DONE:
                raise Failed(f"it does not even see {path} ({seen}): the refusals prove nothing")
            if _open(caller, path, os.O_RDWR, where) == DONE:
                raise Failed(f"process {probe.pid} in the VMM's place may write to {path}")
            made = os.path.join(os.path.dirname(path), "escape")
            if _open(caller, made, os.O_CREAT | os.O_WRONLY, where) == DONE:
                raise Failed(f"process {probe.pid} in the VMM's place made {made}")
        listed = _listed(caller, where)
        if more := set(listed) - {path.split("/")[1] for path in own} - {"dev"}:
            raise Failed(f"its root holds {', '.join(sorted(more))}")
    return (
        f"{len(paths)} paths that the host finds lead to nothing, nor does any descriptor; it sees"
        f" {', '.join(own)} and can neither write nor add to them, nor list its root"
    )


def _exists(caller: Caller, path: str, where: str) -> str:
    return caller.make((262, AT_FDCWD, path.encode() + b"\0", out(144), 0), where=where).word


def _open(caller: Caller, path: str, flags: int, where: str) -> str:
    at = (257, AT_FDCWD, path.encode() + b"\0", flags | O_NONBLOCK | O_CLOEXEC, 0o600)
    return caller.make(at, (3, result(0)), where=where).word


def _listed(caller: Caller, where: str) -> list[str]:
    """What lies in its root, where it may list that at all (struct linux_dirent64, getdents(2))."""
    flags = os.O_RDONLY | O_DIRECTORY | O_CLOEXEC
    opened = (257, AT_FDCWD, b"/\0", flags)
    listing = caller.make(opened, (217, result(0), out(GETDENTS), GETDENTS), where=where)
    if listing.word != DONE:
        return []
    size, (data,) = listing.values[1]
    found, at = [], 0
    while at < size:
        length = struct.unpack_from("<H", data, at + 16)[0]
        found.append(data[at + 19 : at + length].split(b"\0")[0].decode(errors="replace"))
        at += length
    return [name for name in found if name not in (".", "..")]


@check("jail.neighbour", "it reaches no disk, socket, memory, /proc entry or process of another")
def neighbour(arena: Arena) -> str:
    """Through the whole jail, so a single wall that is gone need not show; between.* takes the
    walls apart."""
    probe = _probe(arena)
    where = "child" if arena.root else "self"
    with target_of(arena, "b") as other, contextlib.ExitStack() as held:
        host = held.enter_context(standin.unconfined(arena))
        every = list(_attempts(other))
        controls = {name: host.make(*sequence).word for _, name, sequence, _ in every}
        words: dict[str, str] = {}
        costly = {name: made for _, name, made, harmless in every if not (arena.root or harmless)}
        with probe.calls() as caller:
            for _, name, sequence, _ in every:
                if name not in costly:
                    words[name] = caller.make(*sequence, where=where).word
        words.update({name: end.word for name, end in _spent(arena, costly).items()})
    for name, word in words.items():
        if word == DONE:
            raise Failed(f"{name} of b succeeds for process {probe.pid} in the VMM's place")
    counts: dict[str, int] = {}
    for kind, name, _, _ in every:
        counts[kind] = counts.get(kind, 0) + (controls[name] == DONE)
    if blind := [kind for kind, count in counts.items() if not count]:
        raise Failed(f"nothing of its {blind[0]} works even from the host: nothing was proved")
    done = ", ".join(f"{count} on its {kind}" for kind, count in counts.items())
    ended = f"; {len(costly)} of them end whoever makes them" if costly else ""
    return (
        f"attempts that work from the host: {done}; all answer"
        f" {', '.join(sorted(set(words.values())))}{ended}"
    )


def _spent(
    arena: Arena, attempts: dict[str, tuple[tuple[Word, ...], ...]]
) -> dict[str, standin.Outcome]:
    """Attempts that end a whole program each; those which begin with the same call need one in
    common, unless that call got through."""
    first = {sequence[0]: name for name, sequence in reversed(attempts.items())}
    alone = list(first.values())
    found = dict(zip(alone, standin.spent(arena, [attempts[n] for n in alone]), strict=True))
    for name, sequence in attempts.items():
        found.setdefault(name, found[first[sequence[0]]])
    more = [name for name, end in found.items() if end.values and name not in alone]
    found.update(zip(more, standin.spent(arena, [attempts[n] for n in more]), strict=True))
    return found


def _attempts(
    other: attack.Target,
) -> Iterator[tuple[str, str, tuple[tuple[Word, ...], ...], bool]]:
    """(kind, attempt, calls, whether a VMM's filter lets it make these calls at all)."""
    pid = other.pid
    for flags, word in ((os.O_RDONLY, "reading"), (os.O_RDWR, "writing")):
        yield "disk", f"{word} the disk", (_at(other.disk, flags),), True
    for path in other.sockets:
        address = struct.pack("<H", socket.AF_UNIX) + path.encode() + b"\0"
        yield "sockets", f"connecting to {os.path.basename(path)}", _connect(1, address), False
    abstract = struct.pack("<H", socket.AF_UNIX) + b"\0" + other.abstract.encode()
    yield "sockets", "an abstract socket beside it", _connect(1, abstract), False
    local = (
        struct.pack("<H", socket.AF_INET) + struct.pack(">H", other.port) + b"\x7f\0\0\1" + bytes(8)
    )
    yield "sockets", "the host's 127.0.0.1", _connect(2, local), False
    yield "memory", "opening the memory", (_at(f"/proc/{pid}/mem", os.O_RDWR),), True
    yield "memory", "tracing", ((101, 0x4206, pid, 0, 0),), False  # PTRACE_SEIZE
    yield "memory", "taking a descriptor", ((434, pid, 0), (438, result(0), 0, 0)), False
    for name in ("environ", "maps", "auxv"):
        yield "/proc entries", f"/proc/PID/{name}", (_at(f"/proc/{pid}/{name}", os.O_RDONLY),), True
    inside = (267, AT_FDCWD, f"/proc/{pid}/exe\0".encode(), out(64), 64)
    yield "/proc entries", "/proc/PID/exe", (inside,), True
    yield "process", "a signal", ((62, pid, 0),), False
    yield "process", "a signal to its thread", ((234, pid, pid, 0),), True
    yield "process", "a signal by descriptor", ((434, pid, 0), (424, result(0), 0, 0, 0)), False
    yield "process", "its limits", ((302, pid, 7, 0, out(16)),), True


def _at(path: str, flags: int) -> tuple[Word, ...]:
    return (257, AT_FDCWD, path.encode() + b"\0", flags | O_NONBLOCK | O_CLOEXEC)


def _connect(family: int, address: bytes) -> tuple[tuple[Word, ...], ...]:
    return ((41, family, 1, 0), (42, result(0), address, len(address)))
