"""What the caller tells the launcher: one document, the same value on both sides.

Numbers, paths and descriptor numbers only, so that the launcher needs no model library. Both sides
are one interpreter, and the launcher believes its caller, so it travels as marshal(3py) writes it:
loading `json`, or `typing` for a NamedTuple, takes a launch longer than most of its layers. It must
not check policy: what is in it was decided by whoever made it.
"""

from __future__ import annotations

import marshal


class Fields:
    """A value whose fields are its class's annotations; those with a default may be left out.

    Raises TypeError for a field that is missing or not known.
    """

    def __init__(self, **given: object) -> None:
        names = type(self).__annotations__
        defaults = type(self).__dict__
        if wrong := given.keys() - names.keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(wrong))}")
        for name in names:
            if name not in given and name not in defaults:
                raise TypeError(f"{type(self).__name__} lacks the field {name}")
            setattr(self, name, given.get(name, defaults.get(name)))

    def plain(self) -> dict[str, object]:
        """Every field by name, values within it alike."""
        return {name: _plain(getattr(self, name)) for name in type(self).__annotations__}


def _plain(value: object) -> object:
    if isinstance(value, Fields):
        return value.plain()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


class Bind(Fields):
    """A file in the jail root: from `descriptor` when that is not negative, else from `host`."""

    inside: str
    host: str
    descriptor: int
    executable: bool


class Share(Fields):
    """A host directory in the jail root, from `descriptor`.

    With an idmapped mount, files of `owner` are shown as those of `shown` and other files as
    nobody's: (user, group) each, all four numbers the host's. None shows files as they are.
    """

    inside: str
    descriptor: int
    writable: bool
    owner: tuple[int, int] | None
    shown: tuple[int, int]


class Document(Fields):
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
    `time_slice_ns` is the one of every thread to come.
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
    time_slice_ns: int = 0

    @property
    def of_user(self) -> bool:
        """Whether everything is done with the rights of a user namespace alone."""
        return self.user_namespace in ("first", "join")

    def to_bytes(self) -> bytes:
        return marshal.dumps(self.plain())

    @classmethod
    def from_bytes(cls, data: bytes) -> Document:
        plain = marshal.loads(data)
        plain["binds"] = tuple(Bind(**each) for each in plain["binds"])
        plain["shares"] = tuple(Share(**each) for each in plain["shares"])
        return cls(**plain)
