"""A sandbox whose guest is ours: it speaks the agent's protocol honestly until it is told to lie.

The lies go through a program in the VMM's place (standin.py), so they reach the controller where a
guest's words do. `unharmed` watches everybody else meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from . import standin
from .arena import Arena
from .home import BoxError
from .report import Failed
from .speaker import EXEC, Speaker
from .standin import StandIn

NAME = "liar"
MIB = 1 << 20
READY_SECONDS = 40
CLOSE_SECONDS = 10
# Of the controller: what a lie may make it hold for a moment (it reads 128 KiB at a time).
GROWTH_AT_MOST = 32 * MIB
EXEC_SECONDS = 5.0
# What a terminal acts on: C0 but for the end of a line and a tab, delete, C1, and the marks that
# turn text around (Unicode, bidirectional formatting).
HARMFUL = frozenset(
    [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u202a\u202b\u202c\u202d\u202e"]
    + [*"\u2066\u2067\u2068\u2069\u200e\u200f"]
) - {"\n", "\t"}


class Session:
    """One connection of the controller to the guest, served by a thread until it ends.

    A command that is asked for goes to `on_exec` with its stream and its body.
    """

    def __init__(
        self, connection: socket.socket, facts: dict[str, str], on_exec: Callable[..., None]
    ) -> None:
        self._connection = connection
        self._on_exec = on_exec
        self.speaker = Speaker(connection, facts)
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.speaker.greet()
            while True:
                kind, stream, body = self.speaker.obey()
                if kind == EXEC:
                    self._on_exec(self, stream, body)
        except OSError:
            pass
        finally:
            self.closed.set()

    def tell(self, data: bytes, seconds: float = 30) -> int:
        """Send this; how much was taken before the controller hung up, or time was over."""
        deadline, sent = time.monotonic() + seconds, 0
        view = memoryview(data)
        while sent < len(data) and time.monotonic() < deadline and not self.closed.is_set():
            try:
                sent += self._connection.send(view[sent : sent + 65536])
            except OSError:
                break
        return sent

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self.hang_up()
        self._thread.join(5)
        self._connection.close()


class Liar:
    """The sandbox, its present session, and a marker that its lies carry."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.machine: StandIn = standin.started(arena, NAME)
        self.marker = f"escape-{secrets.token_hex(6)}"
        self.session: Session | None = None
        record = arena.home.launch(NAME)
        self.facts = {
            "kernel": str(record["kernel_release"]),
            "boot_id": f"{secrets.token_hex(4)}-0000-4000-8000-{secrets.token_hex(6)}",
        }

    def honest(self, on_exec: Callable[..., None] | None = None) -> Session:
        """A session in which the sandbox is Ready. Raises BoxError when it does not become so."""
        self.silent()
        deadline = time.monotonic() + READY_SECONDS * self.arena.home.scale
        while time.monotonic() < deadline:
            made = self.open(on_exec)
            while not made.closed.is_set() and time.monotonic() < deadline:
                if self.ready():
                    return made
                time.sleep(0.1 * self.arena.home.scale)
            self.silent()
        status = self.arena.home.condition(NAME, "Ready")
        raise BoxError(f"the stand-in's sandbox does not become Ready: {status}")

    def open(
        self,
        on_exec: Callable[..., None] | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> Session:
        """Answer the controller's next connection, with these facts instead of the true ones."""
        connection = self.machine.relay(READY_SECONDS)
        told = {**self.facts, **(facts or {})}
        self.session = Session(connection, told, on_exec or (lambda *_: None))
        return self.session

    def unanswered(self) -> socket.socket:
        """A connection of the controller whose hello has come and waits for its answer."""
        self.silent()
        while True:
            connection = self.machine.relay(READY_SECONDS)
            try:
                Speaker(connection).hello()
                return connection
            except ConnectionError:  # one that was given up while nobody took it
                connection.close()
            except BaseException:
                connection.close()
                raise

    def silent(self) -> None:
        """Hang up, and answer nothing from now on."""
        if self.session is not None:
            self.session.end()
            self.session = None

    def ready(self) -> bool:
        return self.arena.home.condition(NAME, "Ready")[0] == "True"

    def must_hang_up(self, session: Session, what: str) -> None:
        """Failed unless the controller ends this session, and the sandbox is not called Ready."""
        if not session.closed.wait(CLOSE_SECONDS * self.arena.home.scale):
            raise Failed(f"the controller still listens after {what}")
        self.must_not_be_ready(what)

    def must_not_be_ready(self, what: str) -> None:
        deadline = time.monotonic() + CLOSE_SECONDS * self.arena.home.scale
        while self.ready():
            if time.monotonic() > deadline:
                raise Failed(f"the sandbox is still called Ready after {what}")
            time.sleep(0.1 * self.arena.home.scale)

    @contextlib.contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """`box exec` in this sandbox, with its output in pipes."""
        running = subprocess.Popen(
            [*self.arena.home.box, "exec", NAME, "--", *words],
            env=self.arena.home.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield running
        finally:
            running.kill()
            running.communicate()


def liar(arena: Arena) -> Liar:
    return arena.once("liar", lambda: Liar(arena))


@contextlib.contextmanager
def unharmed(arena: Arena, told: Liar) -> Iterator[list[str]]:
    """Failed when what happens within hurts anybody but the liar; the readings that say so."""
    controller = arena.home.controller
    assert controller is not None
    at = Path(f"/proc/{controller.pid}")
    (at / "clear_refs").write_text("5")  # proc_pid_clear_refs(5): the peak begins anew
    before = _memory(at, "VmRSS")
    times: list[float] = []
    over = threading.Event()
    other = threading.Thread(target=_ask_another, args=(arena, times, over), daemon=True)
    other.start()
    readings: list[str] = []
    try:
        yield readings
    finally:
        over.set()
        other.join(EXEC_SECONDS * arena.home.scale + 10)
    if controller.poll() is not None:
        raise Failed(
            f"the controller ended with {controller.returncode}: {arena.home.log()[-300:]}"
        )
    grown = _memory(at, "VmHWM") - before
    if grown > GROWTH_AT_MOST:
        raise Failed(f"the controller grew by {grown / MIB:.0f} MiB, from {before / MIB:.0f} MiB")
    worst = max(times, default=float("inf"))
    if worst > EXEC_SECONDS * arena.home.scale:
        raise Failed(f"box exec in another sandbox took {worst:.1f} s meanwhile")
    if stray := _strays(arena, told.marker):
        raise Failed(f"it made the file {stray}")
    _nothing_raw(arena)
    readings.append(
        f"the controller grew by {max(grown, 0) / MIB:.0f} MiB; box exec in another sandbox took"
        f" {worst:.1f} s"
    )


def _memory(at: Path, name: str) -> int:
    for line in (at / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise Failed(f"{at} tells no {name}")


def _ask_another(arena: Arena, times: list[float], over: threading.Event) -> None:
    """Commands in the real sandbox b, one after the other, the last begun before the end."""
    while True:
        began = time.monotonic()
        limit = 4 * EXEC_SECONDS
        with contextlib.suppress(BoxError):
            done = arena.home.run("exec", "b", "--", "echo", "here", seconds=limit, check=False)
            if done.stdout == b"here\n":
                times.append(time.monotonic() - began)
            else:
                times.append(float("inf"))
                return
        if over.wait(0.2):
            return


def _strays(arena: Arena, marker: str) -> str:
    """A file that bears the marker of a lie, anywhere it could lead to."""
    places = [arena.folder, arena.home.runtime, Path("/tmp"), Path("/"), Path.cwd()]
    for place in places:
        deep = place in (arena.folder, arena.home.runtime)
        for folder, folders, files in os.walk(place):
            found = [name for name in (*folders, *files) if marker in name]
            if found:
                return os.path.join(folder, found[0])
            if not deep:
                folders.clear()
    return ""


def _nothing_raw(arena: Arena) -> None:
    """Failed when what people look at holds anything that a terminal would act on."""
    shown = {
        " ".join(words): arena.home.run(*words, check=False).stdout
        for words in (("get",), ("describe", NAME), ("events", NAME), ("drift", NAME))
    }
    for file in ("observed.toml", "events.jsonl"):
        shown[file] = arena.home.observed(NAME, file)
    for where, content in shown.items():
        if found := raw(content):
            raise Failed(f"{where} shows {found}")


def raw(content: bytes) -> str:
    """The first thing in it that a terminal would act on, in words; empty when there is none."""
    text = content.decode(errors="surrogateescape")
    return next(
        (f"U+{ord(c):04X} raw" for c in text if c in HARMFUL or "\ud800" <= c <= "\udfff"), ""
    )
