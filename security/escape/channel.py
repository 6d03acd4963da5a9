"""A hostile guest on the agent's channel: whatever it says hurts nobody but its own sandbox.

Each lie must end its own session, leave the controller alive and small, let another sandbox answer,
make no file, and reach no terminal. The lies come through a program in the VMM's place (liar.py).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

from .arena import Arena
from .liar import MIB, NAME, Session, liar, raw, unharmed
from .report import Failed, Unproved, check
from .speaker import EXIT, REPLY, STDERR, STDOUT, frame

FLOOD = 64 * MIB
# By then it must have hung up: PROTOCOL.md lets a host look through 4 MiB for the mark.
SEARCHED_AT_MOST = 12 * MIB
# What may be under way of a command's output that nobody reads: windows, buffers, a pipe.
UNREAD_AT_MOST = 8 * MIB
DRIP_SECONDS, GIVEN_UP_SECONDS = 0.02, 30
DELETED_SECONDS = 40
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x7f"


@check("channel.length", "a frame that claims 4 GiB ends the channel, and is not waited for")
def length(arena: Arena) -> str:
    told = liar(arena)
    session = told.honest()
    with unharmed(arena, told) as said:
        sent = session.tell(frame(STDOUT, 1, b"", length=0xFFFFFFF0)[:-1] + bytes(FLOOD))
        told.must_hang_up(session, f"{sent / MIB:.0f} MiB of a frame of 4 GiB")
    return f"closed after {sent / MIB:.1f} MiB of it; {said[0]}"


@check("channel.streams", "frames on 1,000 streams that nobody opened end the channel")
def streams(arena: Arena) -> str:
    told = liar(arena)
    session = told.honest()
    with unharmed(arena, told) as said:
        many = b"".join(frame(STDERR, 5000 + n, bytes(16384)) for n in range(1000))
        sent = session.tell(many)
        told.must_hang_up(session, "frames on 1,000 streams nobody opened")
    return f"closed after {sent / MIB:.1f} of {len(many) / MIB:.0f} MiB; {said[0]}"


@check("channel.replies", "an answer to a question that nobody asked ends the channel")
def replies(arena: Arena) -> str:
    told = liar(arena)
    session = told.honest()
    with unharmed(arena, told) as said:
        session.tell(frame(REPLY, 77_777, b"\0" + told.marker.encode()))
        told.must_hang_up(session, "an answer to a question nobody asked")
    return f"closed; {said[0]}"


@check("channel.garbage", "bytes that are no frame end the channel, before and after the hello")
def garbage(arena: Arena) -> str:
    """Before it the host searches, within a bound, for the mark that answers its hello."""
    told = liar(arena)
    session = told.honest()
    with unharmed(arena, told) as said:
        session.tell(b"\x01" + os.urandom(MIB))
        told.must_hang_up(session, "a MiB of garbage")
        with told.unanswered() as connection:
            began, sent, noise = time.monotonic(), 0, os.urandom(MIB)
            with contextlib.suppress(OSError):
                while sent < FLOOD and time.monotonic() < began + 20 * arena.home.scale:
                    sent += connection.send(noise)
        if sent > SEARCHED_AT_MOST:
            raise Failed(f"it took {sent / MIB:.0f} MiB of garbage in place of a hello")
        told.must_not_be_ready("garbage in place of a hello")
    return f"closed at once in a session, after {sent / MIB:.1f} MiB before one; {said[0]}"


@check("channel.drip", "a hello that comes byte by byte and never ends is given up")
def drip(arena: Arena) -> str:
    told = liar(arena)
    told.honest()
    with unharmed(arena, told) as said, told.unanswered() as connection:
        began, limit = time.monotonic(), GIVEN_UP_SECONDS * arena.home.scale
        connection.settimeout(DRIP_SECONDS)
        count, ready = 0, False
        with contextlib.suppress(OSError):
            while time.monotonic() < began + limit:
                connection.send(b"\x01")
                count += 1
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(65536):
                        break
                if count % 100 == 0:
                    ready = ready or told.ready()
        took = time.monotonic() - began
        if took >= limit:
            raise Failed(f"the controller still waits for it after {took:.0f} s")
        if ready:
            raise Failed("the sandbox was called Ready meanwhile")
    return f"given up after {took:.1f} s and {count} single bytes; {said[0]}"


@check(
    "channel.output", "endless output is held back by its reader; more than that ends the channel"
)
def output(arena: Arena) -> str:
    told = liar(arena)
    flood = Flood()
    session = told.honest(flood.begin)
    with unharmed(arena, told) as said, told.started("endless") as running:
        allowed = flood.fill(session, 30 * arena.home.scale)  # and nobody reads it
        if not allowed:
            raise Unproved("no command came to the guest: there was nothing to answer")
        if allowed > UNREAD_AT_MOST:
            raise Failed(f"{allowed / MIB:.0f} MiB that nobody reads were asked for")
        session.tell(b"".join(frame(STDOUT, flood.stream, bytes(32000)) for _ in range(999)))
        told.must_hang_up(session, "more output than was asked for")
        code, error = _end_of(arena, running)
        if code == 0 or not error.strip():
            raise Failed(f"the command ended with {code} and said {error[-200:]!r}")
    return f"{allowed / 1024:.0f} KiB were asked for, then closed; box exec failed; {said[0]}"


class Flood:
    """Output for one command, as long as the host grants room for it."""

    def __init__(self) -> None:
        self.stream = self.granted = 0

    def begin(self, session: Session, stream: int, body: bytes) -> None:
        # timeout, then the window of stdout
        self.granted, self.stream = int.from_bytes(body[4:8], "big"), stream
        session.speaker.on_credit = self._more

    def _more(self, stream: int, channel: int, amount: int) -> None:
        if stream == self.stream and channel == 1:
            self.granted += amount

    def fill(self, session: Session, seconds: float) -> int:
        """Bytes sent until no more are granted for a second."""
        deadline, sent, still = time.monotonic() + seconds, 0, time.monotonic()
        while time.monotonic() < deadline and sent <= 2 * UNREAD_AT_MOST:
            size = min(self.granted - sent, 32000)
            if size > 0:
                session.tell(frame(STDOUT, self.stream, bytes(size)))
                sent, still = sent + size, time.monotonic()
            elif sent and time.monotonic() > still + 1:
                break
            else:
                time.sleep(0.01)
        return sent


@check("channel.cut", "a channel that closes amid a frame is a failed command, never a success")
def cut(arena: Arena) -> str:
    told = liar(arena)

    def half_an_exit(session: Session, stream: int, body: bytes) -> None:
        session.tell(frame(EXIT, stream, b"\0" + bytes(4))[:-3])
        session.hang_up()

    session = told.honest(half_an_exit)
    with unharmed(arena, told) as said:
        with told.started("half") as running:
            code, error = _end_of(arena, running)
        if code == 0 or not error.strip():
            raise Failed(f"half an answer is status {code}, with {error[-200:]!r}")
        told.must_hang_up(session, "the channel was cut")
    told.honest()
    return f"box exec answers {code}; the next connection is Ready again; {said[0]}"


@check(
    "channel.names", "paths and terminal escapes in what a guest says lead nowhere, shown or not"
)
def names(arena: Arena) -> str:
    told = liar(arena)
    lie = f"../../../../tmp/{told.marker}{ESCAPES}"
    said_by_exec = b""

    def refuse(session: Session, stream: int, body: bytes) -> None:
        session.tell(frame(EXIT, stream, b"\5" + bytes(3) + b"\1" + lie.encode()))

    told.honest(refuse)
    with unharmed(arena, told) as said:
        with told.started("names") as running:
            code, said_by_exec = _end_of(arena, running)
        if found := raw(said_by_exec):
            raise Failed(f"box exec shows {found}: {said_by_exec[-200:]!r}")
        shown = [told.marker.encode() in said_by_exec]
        for facts in ({"root": f"failed: {lie}"}, {"kernel": lie, "boot_id": lie, "agent": lie}):
            told.silent()
            session = told.open(facts=facts)
            told.must_hang_up(session, "a hello full of lies")
            shown.append(_seen(arena, told.marker))
    if not all(shown):
        raise Unproved(f"not every lie was shown anywhere ({shown}): nothing to be seen in it")
    return f"all of it is shown, escaped, in describe and by box exec ({code}); {said[0]}"


def _seen(arena: Arena, marker: str) -> bool:
    """Whether the marker came to where people look, and what that looks like."""
    deadline = time.monotonic() + 5 * arena.home.scale
    while time.monotonic() < deadline:
        content = arena.home.run("describe", NAME, check=False).stdout
        if found := raw(content):
            raise Failed(f"box describe shows {found}")
        if marker.encode() in content:
            return True
        time.sleep(0.2)
    return False


@check("channel.deleted", "a sandbox whose guest has lied is deleted like any other")
def deleted(arena: Arena) -> str:
    told = liar(arena)
    told.honest()
    told.silent()
    pid, began = int(arena.home.launch(NAME)["pid"]), time.monotonic()
    arena.home.remove(NAME, seconds=DELETED_SECONDS)
    took = time.monotonic() - began
    arena.forget("liar")
    arena.forget(f"stand-in {NAME}")
    if os.path.exists(f"/proc/{pid}"):
        raise Failed(f"its process {pid} lives on")
    if (arena.home.runtime / NAME).exists():
        raise Failed(f"its sockets are left in {arena.home.runtime / NAME}")
    return f"gone after {took:.1f} s, with its guest silent"


def _end_of(arena: Arena, running: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """(status, what it said on standard error) of a command, which has to end by itself."""
    try:
        _, error = running.communicate(timeout=30 * arena.home.scale)
    except subprocess.TimeoutExpired:
        raise Failed("box exec does not end") from None
    return running.returncode, error
