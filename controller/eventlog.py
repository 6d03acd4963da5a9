"""A bounded list of events per sandbox, one JSON object a line.

It is a report: losing the last lines in a power cut is allowed, a file that grows without bound is
not, and neither is a reader that fails because of a torn or foreign line.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from controller import files
from specs.drift import Event

LINES_MAX = 1000
BYTES_MAX = 256 * 1024
LINE_MAX = 4096  # bytes
# What a rotation keeps: half, so that the next 500 events need no rotation.
LINES_KEPT = LINES_MAX // 2
BYTES_KEPT = BYTES_MAX // 2

Identity = tuple[int, int, int]  # device, inode, size in bytes


class EventLog:
    """Appends to and reads event files. One writer per file."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Identity, int]] = {}  # what we left behind, and its lines

    def append(self, path: Path, event: Event) -> None:
        """Add `event` as the last line; raises HostError when it cannot be written.

        When the file would exceed LINES_MAX or BYTES_MAX it is replaced, in one rename, by its
        newest half.
        """
        line = encode(event)
        try:
            flags = (
                os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            )
            descriptor = os.open(path, flags, 0o600)
            try:
                kept = self._append(descriptor, path, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._known.pop(path, None)
            raise files.write_error(path, error) from error
        if kept is not None:
            self._known.pop(path, None)
            files.write_atomic(path, b"".join(kept))

    def _append(self, descriptor: int, path: Path, line: bytes) -> list[bytes] | None:
        """Append and return None, or return the lines that must replace the file."""
        before = identity_of(descriptor)
        known = self._known.get(path)
        size = before[2]
        if known is not None and known[0] == before:
            lines, torn = known[1], False
        elif size > BYTES_MAX:
            return newest([*tail_lines(descriptor, size), line])
        else:
            content = os.pread(descriptor, size, 0)
            lines = content.count(b"\n")
            torn = not content.endswith(b"\n") and bool(content)
        if lines + 1 > LINES_MAX or size + len(line) + 1 > BYTES_MAX:
            return newest([*tail_lines(descriptor, size), line])
        # A line without its end was cut off by a crash: leave it to the reader, on a line of its
        # own.
        data = b"\n" + line if torn else line
        if os.write(descriptor, data) != len(data):
            raise OSError(28, "No space left on device")
        self._known[path] = (identity_of(descriptor), lines + 1 + torn)
        return None

    def read(self, path: Path) -> list[Event]:
        """At most LINES_MAX events, oldest first; whatever is not an event is left out."""
        try:
            handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            facts = os.fstat(handle)
            if not files.is_regular(facts):
                return []
            descriptor = files.reopen(handle)
        except OSError:
            return []
        finally:
            os.close(handle)
        try:
            lines = tail_lines(descriptor, facts.st_size)
        except OSError:
            return []
        finally:
            os.close(descriptor)
        events = (decode(line) for line in lines[-LINES_MAX:])
        return [event for event in events if event is not None]

    def forget(self, path: Path) -> None:
        self._known.pop(path, None)


def identity_of(descriptor: int) -> Identity:
    facts = os.fstat(descriptor)
    return (facts.st_dev, facts.st_ino, facts.st_size)


def tail_lines(descriptor: int, size: int) -> list[bytes]:
    """The whole lines within the last BYTES_MAX bytes."""
    start = max(0, size - BYTES_MAX)
    content = os.pread(descriptor, BYTES_MAX, start)
    lines = content.splitlines(keepends=True)
    if start > 0:
        lines = lines[1:]  # most likely cut in the middle
    return [line if line.endswith(b"\n") else line + b"\n" for line in lines]


def newest(lines: list[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    total = 0
    for line in reversed(lines[-LINES_KEPT:]):
        total += len(line)
        if total > BYTES_KEPT:
            break
        kept.append(line)
    return kept[::-1]


def encode(event: Event) -> bytes:
    """One line of ASCII JSON (control characters escaped) of at most LINE_MAX bytes."""
    message = event.message[:LINE_MAX]
    while True:
        plain = {
            "time": event.time,
            "kind": event.kind,
            "generation": event.generation,
            "message": message if message == event.message else message + "...",
        }
        line = json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        if len(line) <= LINE_MAX or not message:
            return line
        # An escaped character takes up to 12 bytes.
        message = message[: len(message) - max(1, (len(line) - LINE_MAX) // 12)]


def decode(line: bytes) -> Event | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    time, kind, message = (found.get(key) for key in ("time", "kind", "message"))
    generation = found.get("generation")
    if not (isinstance(time, str) and isinstance(kind, str) and isinstance(message, str)):
        return None
    if type(generation) is not int:
        return None
    return Event(time=time, kind=kind, message=message, generation=generation)
