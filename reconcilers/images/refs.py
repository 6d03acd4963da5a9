"""Which content each name stood for when it was first needed: `images/refs.toml`.

A tag may move at any time; what runs must not. So a name is resolved once, and what was found is
kept until somebody takes it out. Writes are atomic, and nothing is guessed from a file that cannot
be read.
"""

from __future__ import annotations

import os
import threading
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import tomli_w

from reconcilers.smallfile import stat_signature
from specs.errors import HostError

NAME = "refs.toml"
SIZE_MAX = 4 << 20  # bytes; a line for each image that was ever used
_HEADER = "# What each base was when it was first built; without its line it is looked up again\n\n"


class Refs:
    """The file in the folder of images. Any thread may call."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._signature: tuple[int, ...] | None = None

    def get(self, name: str) -> str:
        """What `name` was resolved to; empty when it was not. Raises HostError, OSError."""
        with self._lock:
            return self._read().get(name, "")

    def put(self, name: str, identity: str) -> None:
        """Keep it (durable on return). Raises HostError, also where no more fits, OSError."""
        with self._lock:
            known = self._read()
            if known.get(name) != identity:
                self._write({**known, name: identity})

    def drop(self, names: Iterable[str]) -> None:
        """Forget them (durable on return). Raises HostError, OSError."""
        with self._lock:
            known = self._read()
            left = {name: identity for name, identity in known.items() if name not in set(names)}
            if left != known:
                self._write(left)

    def all(self) -> dict[str, str]:
        """Every name and what it was resolved to. Raises HostError, OSError."""
        with self._lock:
            return dict(self._read())

    def _write(self, known: Mapping[str, str]) -> None:
        text = _HEADER + tomli_w.dumps({"resolved": dict(sorted(known.items()))})
        if (
            len(text.encode()) > SIZE_MAX
        ):  # which could not be read again, and then no name is known
            raise HostError(
                f"{self._path} holds {len(known) - 1} names and has no room for another",
                fix="box images --prune forgets those of images that no sandbox uses",
            )
        temporary = self._path.with_name(f".{NAME}.new")
        temporary.unlink(missing_ok=True)
        with open(temporary, "x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _read(self) -> dict[str, str]:
        signature = stat_signature(self._path)
        if signature == self._signature:
            return self._known
        self._known = self._parsed() if signature else {}
        self._signature = signature
        return self._known

    def _parsed(self) -> dict[str, str]:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(SIZE_MAX + 1)
        try:
            if len(data) > SIZE_MAX:
                raise ValueError(f"it is larger than {SIZE_MAX} bytes")
            resolved = tomllib.loads(data.decode())["resolved"]
            return {str(name): str(identity) for name, identity in resolved.items()}
        except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            raise HostError(
                f"{self._path} cannot be read: {error}",
                fix=f"mend it, or move it away: mv {self._path} {self._path}.old",
            ) from error
