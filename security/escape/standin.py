"""A program of ours in a VMM's place: the product launches it itself, through the whole jail.

The private home's config.toml names it as the VMM (docs/configuration.md), so it has the identity,
the walls and the descriptors of one. standin.c says what it can be told; no refused call is
imitated here: each is made by the program itself, in the jail.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import bpf, proc
from .arena import Arena
from .home import BoxError

DONE = "done"
PLACEHOLDER = b"the-nonce-of-this-run-goes-here!"  # standin.c
SUSPEND_SECCOMP = 0x00200000  # ptrace(2), PTRACE_O_SUSPEND_SECCOMP
WATCH_SECONDS = 30
# What it loads on top, as a VMM does (standin.c): BPF_LD|BPF_W|BPF_ABS, BPF_RET|BPF_K
OWN_FILTER = [(0x20, 0, 0, 0), (0x06, 0, 0, bpf.ALLOW)]
Word = int | bytes | str


def out(size: int) -> str:
    """A zeroed buffer of the program's, whose content comes back."""
    return "@" + "00" * size


def inout(content: bytes) -> str:
    """As `out`, filled with this beforehand."""
    return "@" + content.hex()


def result(index: int) -> str:
    """What an earlier call of the same line returned."""
    return f"${index}"


@dataclass(frozen=True)
class Outcome:
    """`values`: (result or negative errno, buffers) of each call that returned; `ended` is
    "ended", "timeout", "signal N", or "lost" when the whole program ended."""

    values: tuple[tuple[int, tuple[bytes, ...]], ...]
    ended: str

    @property
    def word(self) -> str:
        """ "done" when every call succeeded, else the first refusal."""
        for value, _ in self.values:
            if value < 0:
                return errno.errorcode.get(-value, str(value))
        if self.ended == "ended":
            return DONE
        return "SIGSYS" if self.ended == "signal 31" else self.ended


class Caller:
    """Has system calls made by a stand-in, in a jail or (as a control) without one."""

    def __init__(self, reading: Any, writing: Any) -> None:
        self._reading, self._writing = reading, writing

    def make(self, *calls: tuple[Word, ...], where: str = "child") -> Outcome:
        """These calls one after the other, in a child of the program or in itself ("self")."""
        line = f"{where} " + ";".join(" ".join(_word(w) for w in call) for call in calls) + "\n"
        values: list[tuple[int, tuple[bytes, ...]]] = []
        try:
            self._writing.write(line.encode())
            self._writing.flush()
            while answer := self._reading.readline():
                words = answer.decode().split()
                if words[0] in ("ended", "timeout", "signal"):
                    return Outcome(tuple(values), " ".join(words))
                values.append((int(words[0]), tuple(bytes.fromhex(w) for w in words[1:])))
        except (OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
        return Outcome(tuple(values), "lost")


def _word(word: Word) -> str:
    if isinstance(word, bytes):
        return "=" + word.hex()
    return str(word)


@contextlib.contextmanager
def unconfined(arena: Arena) -> Iterator[Caller]:
    """The same program as an ordinary child of ours: what fails there proves nothing."""
    child = subprocess.Popen(
        [program(arena), "--calls"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield Caller(child.stdout, child.stdin)
    finally:
        child.kill()
        child.communicate()


def nonce(arena: Arena) -> str:
    found: str = arena.once("stand-in nonce", lambda: secrets.token_hex(16))
    return found


def program(arena: Arena) -> Path:
    """This run's copy, which obeys nobody else."""
    return arena.once("stand-in program", lambda: _copied(arena))


def _copied(arena: Arena) -> Path:
    content = arena.compiled("standin.c").read_bytes()
    if content.count(PLACEHOLDER) != 1:
        raise BoxError("the program for the VMM's place has no room for a nonce, compile it again")
    folder = arena.folder / "vmm"
    folder.mkdir(mode=0o755)
    path = folder / "stand-in"
    path.write_bytes(content.replace(PLACEHOLDER, nonce(arena).encode()))
    path.chmod(0o755)
    return path


def installed(arena: Arena) -> None:
    """From now on the home's controller starts our program for every VMM; what runs goes on."""
    arena.once("stand-in", lambda: _install(arena))


def _install(arena: Arena) -> None:
    arena.sandbox("a", "b")  # real ones, from before
    path = program(arena)
    arena.home.stop()
    if arena.accel != "tcg":
        threading.Thread(target=_prove_kvm, args=(arena,), daemon=True).start()
    arena.home.start({"qemu": str(path)})
    arena.home.wait("b")


def _prove_kvm(arena: Arena) -> None:
    """Where KVM works, the product boots a guest on it before it trusts a VMM it does not know."""
    from .speaker import Speaker

    monitor = arena.home.runtime / ".probe-run" / "kvm-probe" / "qmp.sock"
    deadline = time.monotonic() + WATCH_SECONDS * arena.home.scale
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), _ordered(arena, monitor, "relay") as connection:
            Speaker(connection).serve(5)
            return
        time.sleep(0.05)


@dataclass
class StandIn:
    """One sandbox whose VMM is our program. `pid` is as the launch record says, and proven."""

    arena: Arena
    name: str
    pid: int

    @property
    def monitor(self) -> Path:
        return self.arena.home.runtime / self.name / "qmp.sock"

    def alive(self) -> bool:
        try:
            same = os.path.samefile(f"/proc/{self.pid}/exe", program(self.arena))
        except OSError:
            return False  # not even of one that has ended and whom nobody asked for its status
        return same

    def relay(self, seconds: float = 20) -> socket.socket:
        """The next connection of the controller to the agent, as if we were the guest."""
        return _ordered(self.arena, self.monitor, "relay", seconds)

    @contextlib.contextmanager
    def calls(self) -> Iterator[Caller]:
        """Has calls made in the jail. As root they are made in children of the program, so that
        what ends them leaves it alone; else only "self" works.
        """
        with _ordered(self.arena, self.monitor, "calls", 20) as connection:
            file = connection.makefile("rwb")
            if file.readline() != b"ready\n":
                raise BoxError(f"the stand-in of {self.name} takes no orders")
            if not self.arena.root:
                yield Caller(file, file)
                return
            bpf.seize(self.pid, SUSPEND_SECCOMP)
            try:
                yield Caller(file, file)
            finally:
                bpf.release(self.pid)


def _ordered(arena: Arena, path: Path, order: str, seconds: float = 20) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(seconds * arena.home.scale)
        made.connect(str(path))
        line = b""
        while not line.endswith(b"\n"):
            if not (byte := made.recv(1)):
                raise ConnectionError("it hung up")
            line += byte
        made.sendall(f"{nonce(arena)} {order}\n".encode())
    except BaseException:
        made.close()
        raise
    return made


def started(arena: Arena, name: str, **fields: object) -> StandIn:
    """A sandbox with our program as its VMM, made at the first call."""
    installed(arena)
    return arena.once(f"stand-in {name}", lambda: _start(arena, name, fields))


def _start(arena: Arena, name: str, fields: dict[str, object]) -> StandIn:
    arena.home.declare({name: arena.boxfile(**fields)})
    return launched(arena, name)


def spent(arena: Arena, attempts: Sequence[tuple[tuple[Word, ...], ...]]) -> list[Outcome]:
    """What comes of each attempt when it is made by a program of its own, in a jail of its own.

    So without root refused calls can be tried: each ends the whole program, which then is started
    anew. None of these sandboxes remains.
    """
    if not attempts:
        return []
    installed(arena)
    names = [f"spent{number}" for number in range(len(attempts))]
    arena.home.declare({name: arena.boxfile() for name in names})
    found = []
    for name, attempt in zip(names, attempts, strict=True):
        made = launched(arena, name, seconds=60)
        with made.calls() as caller:
            if caller.make((39,), where="self").word != DONE:
                raise BoxError(f"the program in the VMM's place of {name} makes no call at all")
            found.append(caller.make(*attempt, where="self"))
        if found[-1].ended == "lost":
            _ended(made)
    arena.home.remove(*names)
    return found


def _ended(made: StandIn) -> None:
    """Waits until it is gone: who only hangs up was not refused anything."""
    deadline = time.monotonic() + 10 * made.arena.home.scale
    while made.alive():
        if time.monotonic() > deadline:
            raise BoxError(f"process {made.pid} in the VMM's place hung up and lives")
        time.sleep(0.05)


def launched(arena: Arena, name: str, former: int = 0, seconds: float = 30) -> StandIn:
    """Waits for the program under this name, with another process than `former`."""
    deadline = time.monotonic() + seconds * arena.home.scale
    wanted = os.stat(program(arena))
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, json.JSONDecodeError, KeyError):
            pid = int(arena.home.launch(name)["pid"] or 0)
            if pid > 1 and pid != former:
                facts = os.stat(f"/proc/{pid}/exe")
                if (facts.st_dev, facts.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return StandIn(arena, name, pid)
        time.sleep(0.05)
    said = arena.home.run("describe", name, check=False).stdout.decode(errors="replace")
    raise BoxError(f"the program in the VMM's place of {name} was not started: {said[-600:]}")


def same_jail(arena: Arena, probe: StandIn, real: int) -> list[str]:
    """In what the stand-in's walls differ from those of a real VMM, in words."""
    found = []
    mine, theirs = proc.status(probe.pid), proc.status(real)
    for each in (*proc.CAPABILITY_SETS, "NoNewPrivs", "Seccomp", "Umask", "Groups"):
        if mine.get(each) != theirs.get(each):
            found.append(f"{each} is {mine.get(each)}, not {theirs.get(each)}")
    for each in ("Max core file size", "Max file size", "Max open files", "Max locked memory"):
        if proc.limit(probe.pid, each) != proc.limit(real, each):
            found.append(f"{each} is {proc.limit(probe.pid, each)}")
    if arena.root:
        programs = bpf.fetch(real)
        own = [each for each in bpf.fetch(probe.pid) if each != OWN_FILTER]
        if not own or any(each not in programs for each in own):
            found.append("its system call filter is another one")
    return found
