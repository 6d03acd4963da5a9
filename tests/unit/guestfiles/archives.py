"""Archives written by hand, as a guest could that says anything at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.archive import HEADER, Kind, Record, encode
from reconcilers.guestfiles.notes import Notes
from reconcilers.guestfiles.unpack import unpack

MOMENT = 1_600_000_000_000_000_007
Part = tuple[Record, bytes]


def folder(name: bytes, mode: int = 0o755, body: bytes = b"") -> list[Part]:
    return [(Record(Kind.FOLDER, name, mode, mtime_ns=MOMENT, body=body), b"")]


def leave() -> list[Part]:
    return [(Record(Kind.LEAVE), b"")]


def file(
    name: bytes, data: bytes = b"", *, mode: int = 0o644, number: int = 0, body: bytes = b""
) -> list[Part]:
    made = Record(Kind.FILE, name, mode, len(data), MOMENT, number=number, body=body)
    return [(made, b""), *(run(0, data) if data else [])]


def sparse(name: bytes, size: int, *runs: tuple[int, bytes]) -> list[Part]:
    made: list[Part] = [(Record(Kind.FILE, name, 0o644, size, MOMENT), b"")]
    return made + [part for at, data in runs for part in run(at, data)]


def run(offset: int, data: bytes) -> list[Part]:
    return [(Record(Kind.DATA, size=offset, length=len(data)), data)]


def symlink(name: bytes, target: bytes) -> list[Part]:
    return [(Record(Kind.SYMLINK, name, 0o777, mtime_ns=MOMENT, body=target), b"")]


def hard(name: bytes, number: int) -> list[Part]:
    return [(Record(Kind.HARD, name, number=number), b"")]


def note(name: bytes, number: int) -> list[Part]:
    return [(Record(Kind.NOTE, name, number=number), b"")]


def end(parts: Sequence[Part]) -> list[Part]:
    """One that agrees with what comes before it."""
    kinds = [record.kind for record, _ in parts]
    entries = sum(kind in (Kind.FOLDER, Kind.FILE, Kind.SYMLINK, Kind.HARD) for kind in kinds)
    data = sum(record.length for record, _ in parts if record.kind == Kind.DATA)
    return [(Record(Kind.END, size=entries, length=data, number=kinds.count(Kind.NOTE)), b"")]


def archive(*groups: list[Part], ended: bool = True) -> bytes:
    parts = [part for group in groups for part in group]
    data = bytearray(HEADER)
    for record, content in parts + (end(parts) if ended else []):
        data += encode(record, len(data)) + content
        data += bytes(-len(data) % 8)
    return bytes(data)


@contextmanager
def opened(content: bytes, path: Path) -> Iterator[int]:
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def unpacked(content: bytes, tmp_path: Path) -> tuple[Path, Notes]:
    """Written into a new directory beside its file."""
    target, notes = tmp_path / "target", Notes()
    target.mkdir()
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with opened(content, tmp_path / "archive") as source:
            unpack(root, source, notes)
    finally:
        os.close(root)
    return target, notes
