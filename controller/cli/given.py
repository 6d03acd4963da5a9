"""Boxfiles named with -f: a file, a folder or standard input, parsed before anything is done.

All mistakes of all files are reported together, and then nothing is done with any of them. This
module must not write.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specs.boxfile import Boxfile
from specs.document import SIZE_MAX
from specs.errors import HostError, InvalidBoxfile, Problem, UsageError
from specs.parse import name_from_filename, parse_boxfile
from specs.text import visible


@dataclass(frozen=True)
class Given:
    """One valid Boxfile as given; `suffix` is that of the file it becomes in the folder."""

    where: str
    data: bytes
    box: Boxfile

    @property
    def suffix(self) -> str:
        return ".box.toml" if self.where.endswith(".toml") else ".box.yaml"


def given(arguments: Iterable[str]) -> list[Given]:
    """The Boxfiles behind every -f. Raises InvalidBoxfile with every mistake, UsageError."""
    found: list[Given] = []
    problems: list[Problem] = []
    for one in _texts(arguments):
        if isinstance(one, Problem):
            problems.append(one)
            continue
        where, data, expected = one
        parsed = parse_boxfile(data, file=where, expected_name=expected)
        problems += parsed.problems
        if parsed.box is not None:
            found.append(Given(where, data, parsed.box))
    if problems:
        raise InvalidBoxfile("nothing was done", problems=tuple(problems))
    _refuse_twins(found)
    return found


def _refuse_twins(found: list[Given]) -> None:
    seen: dict[str, str] = {}
    for one in found:
        if one.box.name in seen:
            raise UsageError(
                f"{seen[one.box.name]} and {one.where} both declare {one.box.name}",
                fix="give one of them",
            )
        seen[one.box.name] = one.where


Text = tuple[str, bytes, str | None]
"""Where a Boxfile stands, its bytes, and the name that its file name stands for."""


def _texts(arguments: Iterable[str]) -> Iterator[Text | Problem]:
    for argument in arguments:
        path = Path(argument)
        if argument == "-":
            yield "stdin", _bounded(sys.stdin.fileno(), "stdin"), None
        elif path.is_dir():
            yield from _folder(path)
        else:
            # A pipe is welcome here, unlike in the watched folder: `-f <(...)`.
            descriptor = _opened(path, argument)
            try:
                yield argument, _bounded(descriptor, argument), _expected(path)
            finally:
                os.close(descriptor)


def _opened(path: Path, argument: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(
            f"cannot be read: {error.strerror}",
            where=visible(argument, 300),
            fix="give a Boxfile, a folder of them, or - for standard input; box new writes one",
        ) from error


def _expected(path: Path) -> str | None:
    return name_from_filename(str(path.absolute()))


def _bounded(descriptor: int, where: str) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(descriptor, 64 * 1024):
        pieces.append(piece)
        size += len(piece)
        if size > SIZE_MAX:
            raise UsageError(f"larger than {SIZE_MAX // 1024} KiB, no Boxfile is", where=where)
    return b"".join(pieces)


def _folder(path: Path) -> Iterator[Text | Problem]:
    """A folder is read as the watched one would be."""
    from controller.sources.folder import FolderMissing, ScanCache, scan

    scanned = scan(path, ScanCache())
    if isinstance(scanned, FolderMissing):
        raise HostError(scanned.reason)
    for first, *others in scanned.twins.values():
        message = f"{' and '.join(others)} declares the same sandbox"
        yield Problem(str(path / first), 1, 1, "", message, "keep one of them")
    for bad, why in scanned.problems:
        yield Problem(visible(str(path / bad), 300), 1, 1, "", visible(why, 400))
    if not scanned.files and not scanned.problems:
        raise UsageError(
            "no Boxfile in this folder", where=str(path), fix="box new NAME writes one"
        )
    for name, file in sorted(scanned.files.items()):
        yield str(path / file.path), file.data, name
