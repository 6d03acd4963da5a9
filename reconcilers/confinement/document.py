"""What the caller tells the launcher: one JSON document, the same value on both sides.

Numbers, paths and descriptor numbers only, so that the launcher needs no model library. It must not
check policy: what is in it was decided by whoever made it.
"""

from __future__ import annotations

import json
from typing import NamedTuple


class Bind(NamedTuple):
    """A file in the jail root: from `descriptor` when that is not negative, else from `host`."""

    inside: str
    host: str
    descriptor: int
    executable: bool


class Share(NamedTuple):
    """A host directory in the jail root, from `descriptor`.

    With an idmapped mount, files of `owner` are shown as those of `shown` and other files as
    nobody's: (user, group) each, all four numbers the host's. None shows files as they are.
    """

    inside: str
    descriptor: int
    writable: bool
    owner: tuple[int, int] | None
    shown: tuple[int, int]


class Document(NamedTuple):
    """One launch. Descriptors are numbers in the launcher; `descriptors` maps inside to launcher.

    `status` is the pipe for the report, `go` the pipe whose bytes let launcher and VMM proceed.
    `uid`, `gid` and `groups` are as the user namespace it is in by then shows them; `groups` is
    None where that namespace lets nobody set them. `user_namespace` is "first" when everything else
    needs its rights (an ordinary user launches), "join" when the one behind `users` is entered for
    the same purpose, "late" when it is entered once the root is built (a helper of root's that has
    capabilities), empty for none. The caller writes the maps of a new one; of a late one it then
    puts a byte into the pipe `mapped`.
    `netns` is a prepared network namespace to enter; negative: a new one that holds nothing, or
    with `host_network` the caller's own.
    `capabilities` are kept over execve, by number, and count in its user namespace alone. `proc`
    mounts a procfs that shows nothing but processes of the jail.
    """

    argv: tuple[str, ...]
    uid: int
    gid: int
    kvm: bool
    cgroup_procs: tuple[str, ...]
    binds: tuple[Bind, ...]
    descriptors: tuple[tuple[int, int], ...]
    rlimits: tuple[tuple[str, int, int], ...]
    seccomp: str
    status: int
    go: int
    netns: int = -1
    groups: tuple[int, ...] | None = ()
    user_namespace: str = ""
    shares: tuple[Share, ...] = ()
    proc: bool = False
    mapped: int = -1
    capabilities: tuple[int, ...] = ()
    users: int = -1
    host_network: bool = False

    @property
    def of_user(self) -> bool:
        """Whether everything is done with the rights of a user namespace alone."""
        return self.user_namespace in ("first", "join")

    def to_json(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Document:
        plain = json.loads(data)
        plain["argv"] = tuple(plain["argv"])
        plain["cgroup_procs"] = tuple(plain["cgroup_procs"])
        plain["binds"] = tuple(Bind(*each) for each in plain["binds"])
        plain["descriptors"] = tuple((inside, outside) for inside, outside in plain["descriptors"])
        plain["rlimits"] = tuple((name, soft, hard) for name, soft, hard in plain["rlimits"])
        if plain["groups"] is not None:
            plain["groups"] = tuple(plain["groups"])
        plain["shares"] = tuple(_share(*each) for each in plain["shares"])
        plain["capabilities"] = tuple(plain["capabilities"])
        return cls(**plain)


def _share(
    inside: str, descriptor: int, writable: bool, owner: list[int] | None, shown: list[int]
) -> Share:
    return Share(inside, descriptor, writable, _pair(owner) if owner else None, _pair(shown))


def _pair(numbers: list[int]) -> tuple[int, int]:
    user, group = numbers
    return user, group
