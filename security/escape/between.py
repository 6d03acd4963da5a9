"""As the VMM of sandbox a: the disk, sockets, memory, /proc entries and signals of sandbox b.

Two places are taken, each without the walls in front of it: inside all namespaces of a but without
its system call filter, and (strict) as a's host user without any namespace. jailed.py does the same
from a program that was launched through the whole jail.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from . import attack, groups, places, proc
from .arena import RAM_MIB, Arena
from .report import Failed, Unproved, check
from .within import enter_user_namespace

# Where the host's own network and IPC are: only namespaces keep a VMM from those, not its user.
ONLY_NAMESPACES = {
    "the host's abstract socket", "the host's 127.0.0.1", "the host's ::1",
    "shared memory of the host",
}  # fmt: skip
# Only the user of a file refuses these: the attacker was let past every folder and namespace.
PAST_FOLDERS = {"read past its folders", "write past its folders", "list past its folders"}
# What must work from the host, or the attempts prove nothing.
CONTROLS = {
    "disk": "write past its folders", "sockets": "connect past its folders",
    "memory": "process_vm_readv", "proc": "environ", "signals": "kill",
}  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Attempted:
    """Outcomes by place, kind and attempt."""

    outcomes: dict[str, dict[str, dict[str, str]]]
    reached: dict[str, list[int]]


def attacks(arena: Arena) -> list[str]:
    return ["namespaces", "user"] if arena.isolation == "strict" else ["namespaces"]


def _attempted(arena: Arena) -> Attempted:
    def attempt() -> Attempted:
        a = arena.vmms()["a"]
        outcomes: dict[str, dict[str, dict[str, str]]] = {}
        reached: dict[str, list[int]] = {}
        with target_of(arena, "b") as target:
            for place in ("host", *attacks(arena)):
                task = partial(_all, target, from_within=place == "host" and not arena.root)
                lines = places.start(place, a, task).results()
                for kind, name, outcome in lines[:-1]:
                    outcomes.setdefault(place, {}).setdefault(kind, {})[name] = outcome
                reached[place] = lines[-1]
        return Attempted(outcomes, reached)

    return arena.once("between", attempt)


def _all(target: attack.Target, say: places.Say, *, from_within: bool) -> None:
    """`from_within`: an ordinary user has the rights of the host over b in its user namespace."""
    if from_within:
        enter_user_namespace(target.pid)
    for each in attack.attempts(target):
        say(each)
    say(attack.reachable(max(target.pid, os.getpid()) + 2000))


@contextlib.contextmanager
def target_of(arena: Arena, name: str) -> Iterator[attack.Target]:
    """What there is of a sandbox, and canaries of the host beside it."""
    pid = arena.vmm(name)
    disk = arena.home.path / "disks" / name / "base.raw"
    runtime = arena.home.runtime / name
    abstract = f"escape-{secrets.token_hex(8)}"
    segment = _libc.shmget(0, 4096, 0o1666)  # IPC_PRIVATE, IPC_CREAT
    with contextlib.ExitStack() as held:
        folder = os.open(disk.parent, os.O_PATH | os.O_DIRECTORY)
        held.callback(os.close, folder)
        monitor = os.open(runtime / "qmp.sock", os.O_PATH)
        held.callback(os.close, monitor)
        listener = held.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind("\0" + abstract)
        listener.listen(16)
        port = _listen_everywhere(held)
        held.callback(_libc.shmctl, segment, 0, None)  # IPC_RMID
        home = os.stat(arena.home.path).st_dev
        yield attack.Target(
            pid=pid,
            address=proc.readable_address(pid),
            disk=str(disk),
            sockets=(str(arena.home.path / "box.sock"), str(runtime / "qmp.sock")),
            folder_fd=folder,
            socket_fd=monitor,
            port=port,
            abstract=abstract,
            segment=segment,
            host_disk=(os.major(home), os.minor(home)),
        )


def _listen_everywhere(held: contextlib.ExitStack) -> int:
    port = 0
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.suppress(OSError):  # a host without IPv6 has one canary less
            made = held.enter_context(socket.socket(family))
            made.bind((address, port))
            made.listen(16)
            port = made.getsockname()[1]
    return port


def _judge(arena: Arena, kind: str) -> str:
    """Failed when an attempt that works from the host works from a's place too."""
    found = _attempted(arena).outcomes
    control = found["host"][kind]
    if control[CONTROLS[kind]] != attack.DONE:
        raise Failed(
            f"{CONTROLS[kind]} answers {control[CONTROLS[kind]]} even from the host: the attempts"
            " prove nothing"
        )
    # threat model: a standard VMM of an ordinary user has that very user
    one_user = arena.isolation == "standard" and not arena.root
    readings, open_to_both = [], []
    for place in attacks(arena):
        tried = {
            name: outcome
            for name, outcome in found[place][kind].items()
            if not (place == "user" and name in ONLY_NAMESPACES)
        }
        for name, outcome in tried.items():
            if outcome != attack.DONE:
                continue
            if not (one_user and name in PAST_FOLDERS):
                raise Failed(f"{name} of b succeeds from the {place} of a")
            open_to_both.append(name)
        working = [
            name for name in tried if control.get(name) == attack.DONE and name not in open_to_both
        ]
        words = ", ".join(sorted({tried[name] for name in working}))
        readings.append(f"{len(working)} attempts from the {place} of a answer {words}")
    said = "; ".join(readings) + "; from the host all of them succeed"
    if open_to_both:
        raise Unproved(
            f"{said}. Only namespaces keep these apart, a and b have one user: {open_to_both}"
        )
    return said


@check("between.disk", "a VMM cannot read or write another sandbox's disk, nor the host's")
def disk(arena: Arena) -> str:
    return _judge(arena, "disk")


@check("between.sockets", "a VMM cannot reach another's sockets, the API, or listeners of the host")
def sockets(arena: Arena) -> str:
    return _judge(arena, "sockets")


@check("between.memory", "a VMM cannot read or change another's memory or take its descriptors")
def memory(arena: Arena) -> str:
    return _judge(arena, "memory")


@check("between.proc", "a VMM cannot look into another's entries of /proc")
def entries(arena: Arena) -> str:
    return _judge(arena, "proc")


@check(
    "between.signals", "a VMM cannot signal, slow down or limit another, or any process of the host"
)
def signals(arena: Arena) -> str:
    said = _judge(arena, "signals")
    reached = _attempted(arena).reached
    own = arena.vmm("a")
    for place in attacks(arena):
        others = [pid for pid in reached[place] if not _is_its_own(arena, place, pid, own)]
        if others:
            raise Failed(f"signals from the {place} of a reach the processes {others[:10]}")
    return f"{said}; of all process numbers, signals reach its own alone"


def _is_its_own(arena: Arena, place: str, pid: int, vmm: int) -> bool:
    if place == "namespaces":
        return pid == 1  # as it is called in there
    try:
        return groups.folders(f"/proc/{pid}") == groups.folders(f"/proc/{vmm}")
    except OSError:
        return True  # our own child, which has ended


@check("between.start", "the same while the other sandbox starts")
def while_it_starts(arena: Arena) -> str:
    a, before = arena.vmms()["a"], arena.vmm("b")
    name, ram = "b", RAM_MIB + 8 + secrets.randbelow(8)
    marker = f"box/{arena.home.instance}/{name}"  # the user of a cannot read it
    readings = []
    with contextlib.ExitStack() as held, target_of(arena, name) as target:
        watchers = {
            place: held.enter_context(
                places.at_work(places.start(place, a, partial(_watch, marker, target, place)))
            )
            for place in ("host", *attacks(arena))
        }
        arena.nonces.pop(name)
        arena.sandbox(name, ram_mib=ram)
        found = {place: child.stop() for place, child in watchers.items()}
    if arena.vmm(name) == before:
        raise Failed("b was not started anew: nothing was tried")
    if not any(pid == arena.vmm(name) for pid, _ in found["host"]):
        raise Failed("not even a watcher of the host saw b start: the attempts prove nothing")
    for place in attacks(arena):
        if found[place]:
            pid, what = found[place][0]
            raise Failed(f"while b started, {what} of process {pid} worked from the {place} of a")
        readings.append(place)
    processes = len({pid for pid, _ in found["host"]})
    return (
        f"the host could look into {processes} processes of b while it was started anew,"
        f" the {' and the '.join(readings)} of a into none"
    )


def _watch(marker: str, target: attack.Target, place: str, say: places.Say) -> None:
    """Try what matters on every new process and on b's files, for as long as we are left alive.

    On a host with one processor the watchers rest most of the time: what they watch has to happen.
    """
    ours, seen = {os.getpid(), os.getppid()}, set()
    last = target.pid
    while True:
        began = time.monotonic()
        for kind, name, call in attack.files(target):
            if place != "host" and attack.outcome(call) == attack.DONE:
                say((0, f"{kind}: {name}"))
        for pid in _numbers(last):
            last = max(last, pid)
            if pid in ours or (place == "host" and not _belongs(pid, marker)):
                continue
            for name, call in attack.processes(pid):
                if (pid, name) in seen or attack.outcome(call) != attack.DONE:
                    continue
                if place == "user" and not _belongs(pid, marker):
                    continue
                seen.add((pid, name))
                say((pid, name))
        time.sleep(5 * (time.monotonic() - began) if os.cpu_count() == 1 else 0.002)


def _numbers(last: int) -> list[int]:
    """All processes where /proc shows them, else every number around the newest known one."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return list(range(2, last + 300))


def _belongs(pid: int, marker: str) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return f"{marker}\n" in file.read()
    except OSError:
        return False
