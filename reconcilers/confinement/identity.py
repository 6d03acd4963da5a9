"""One numeric identity per strict sandbox, claimed for the whole host under one lock.

The registry is durable and can be rebuilt: the controller adopts what its records and live VMMs
say. It must never edit a system file and never hand out an identity that somebody may be using.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specs.config import Config


@dataclass(frozen=True, slots=True)
class IdRange:
    """`count` identities from `first`, used for UID and GID alike."""

    first: int
    count: int


def ranges_of(config: Config) -> tuple[IdRange, ...]:
    """The ranges strict sandboxes take their identity from, in the order they are used."""
    return (IdRange(config.uid_first, config.uid_count),)


def standard_uid(config: Config) -> int:
    """The unprivileged identity shared by root's `isolation: standard` sandboxes."""
    raise NotImplementedError


class IdentityRegistry:
    """Host-wide claims. Every method takes the lock, reads the file, and writes it if it changed."""

    def __init__(
        self,
        *,
        lock: Path = Path("/run/box/identities.lock"),
        registry: Path = Path("/var/lib/box/identities.toml"),
    ) -> None:
        self._lock = lock
        self._registry = registry

    def claim(
        self,
        instance: str,
        sandbox: str,
        ranges: Sequence[IdRange],
        *,
        roots: Sequence[Path] = (),
    ) -> tuple[int, int]:
        """(uid, gid) of this sandbox: the one it has, else a free one.

        `roots` are the folders in which files of a former owner could remain. Raises HostError:
        "waits: ..." (retry) when every identity is taken; where a range overlaps a user, a group or
        a subordinate range of the host.
        """
        raise NotImplementedError

    def adopt(self, instance: str, sandbox: str, uid: int, *, roots: Sequence[Path] = ()) -> None:
        """Records what a state file or a live VMM proves; Conflict when another sandbox has it."""
        raise NotImplementedError

    def release(self, instance: str, sandbox: str) -> None:
        """Gives the identity up; it is not handed out again while a process or file of it remains."""
        raise NotImplementedError

    def owner_of(self, uid: int) -> tuple[str, str] | None:
        """(instance, sandbox) that holds `uid`."""
        raise NotImplementedError

    def claimed(self, instance: str) -> dict[str, int]:
        """Sandbox name -> uid of one instance."""
        raise NotImplementedError
