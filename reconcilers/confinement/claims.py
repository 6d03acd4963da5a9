"""The host-wide registry file of identities: its content as a value, its lock, its durable write.

A file that cannot be understood is set aside, never overwritten: its owner may want to look at it,
and the controllers put their claims back by adopting them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from reconcilers import hostlock
from specs.errors import HostError

_LOCK_WAIT = 10.0  # seconds; a claim takes milliseconds
_FORMAT = 1


@dataclass(slots=True)
class Claims:
    """`held` maps (instance, sandbox) to a UID. `last` is the UID handed out most recently,
    `highest` the highest ever: above it nobody has left a file, once all `roots` (folders by
    instance) were `surveyed`."""

    held: dict[tuple[str, str], int] = field(default_factory=dict)
    last: int = 0
    highest: int = 0
    roots: dict[str, list[str]] = field(default_factory=dict)
    surveyed: bool = False

    def owner_of(self, uid: int) -> tuple[str, str] | None:
        return next((owner for owner, number in self.held.items() if number == uid), None)

    def remember_roots(self, instance: str, roots: Sequence[Path]) -> None:
        known = self.roots.setdefault(instance, [])
        new = [str(root) for root in roots if str(root) not in known]
        if new:
            known += new
            self.surveyed = False

    def all_roots(self) -> list[str]:
        return sorted({root for roots in self.roots.values() for root in roots})

    def to_toml(self) -> bytes:
        plain: dict[str, Any] = {"format": _FORMAT, "last": self.last}
        plain |= {"highest": self.highest, "surveyed": self.surveyed}
        plain["roots"] = self.roots
        plain["claim"] = [
            {"instance": instance, "sandbox": sandbox, "uid": uid}
            for (instance, sandbox), uid in sorted(self.held.items())
        ]
        return tomli_w.dumps(plain).encode()

    @classmethod
    def from_toml(cls, data: bytes) -> Claims:
        """Raises ValueError for anything `to_toml` does not write."""
        plain = tomllib.loads(data.decode())
        try:
            if plain["format"] != _FORMAT:
                raise ValueError(f"unknown format {plain['format']}")
            held = {(str(e["instance"]), str(e["sandbox"])): int(e["uid"]) for e in plain["claim"]}
            roots = {str(name): list(map(str, paths)) for name, paths in plain["roots"].items()}
            numbers = int(plain["last"]), int(plain["highest"])
            found = cls(held, *numbers, roots, plain["surveyed"] is True)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a registry of identities: {error}") from error
        if len(set(held.values())) != len(held):
            raise ValueError("two sandboxes hold one identity")
        return found


class ClaimsFile:
    """Reads and changes the registry. Several threads and processes may hold one each."""

    def __init__(self, lock: Path, path: Path) -> None:
        self._lock = lock
        self._path = path

    def read(self) -> Claims:
        """Without the lock: a rename replaces the file as a whole. Raises HostError."""
        try:
            return Claims.from_toml(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            return Claims()
        except OSError as error:
            raise _unusable(self._path, error) from None

    def check(self) -> None:
        """Changes nothing. Raises HostError where claims could not be kept."""
        for folder in {self._lock.parent, self._path.parent}:
            there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
            if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
                raise _unusable(folder, PermissionError(errno.EACCES, f"{there} is not writable"))

    @contextmanager
    def changing(self) -> Iterator[Claims]:
        """The present claims, under the lock; written back when the body changed them and did not
        raise."""
        with self._locked():
            try:
                before = self._path.read_bytes()
                claims = Claims.from_toml(before)
            except FileNotFoundError:
                before, claims = b"", Claims()
            except ValueError:
                self._path.rename(self._path.with_suffix(f".garbled-{time.time_ns()}"))
                before, claims = b"", Claims()
            yield claims
            after = claims.to_toml()
            if after != before:
                try:
                    self._write(after)
                except OSError as error:
                    raise _unusable(self._path, error) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._made(self._lock.parent)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(hostlock.held(self._lock, _LOCK_WAIT))
            except OSError as error:
                raise _unusable(self._lock, error) from None
            yield

    @staticmethod
    def _made(folder: Path) -> Path:
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(folder, error) from None
        return folder

    def _write(self, data: bytes) -> None:
        """Temporary file in the same folder, fsync, rename, fsync of the folder."""
        folder = self._made(self._path.parent)
        temporary = folder / f".{self._path.name}.tmp"  # one is enough: we hold the lock
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _unusable(path: Path, error: OSError) -> HostError:
    fix = ""
    if error.errno == errno.ENOSPC:
        fix = f"free space in {path.parent}"
    elif os.geteuid() != 0:
        fix = "set XDG_STATE_HOME to a folder of your own"
    return HostError(f"identities cannot be kept in {path}: {error.strerror}", fix=fix)
