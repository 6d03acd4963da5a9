"""Which host directories a Boxfile shares, where its paths lead, and whether they may be shared.

Everything is judged on an open descriptor, by device and inode: what is refused stays refused under
any other name it has. It starts nothing and must not open a directory for anything but looking.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from reconcilers import usermounts
from reconcilers.hostpath import Identity, Opened, ancestors, opened_directory
from reconcilers.layout import Layout
from specs.boxfile import Boxfile, Mount, MountMode
from specs.config import Config
from specs.errors import HostError

_CACHE = "/var/cache/box"
_RUNTIME = "/run/box"
_KERNEL_FILES = ("/proc", "/sys", "/dev")


@dataclass(frozen=True)
class Directory:
    """One mount, resolved: `path` has no link in it, `owner` is (user, group) on the host. `sees`
    says in words which files below it the helper may open.
    """

    index: int
    mount: Mount
    path: str
    identity: Identity
    owner: tuple[int, int]
    sees: str

    @property
    def writable(self) -> bool:
        return self.mount.mode is MountMode.rw


@dataclass(frozen=True)
class Refused:
    """Why mount `index` cannot be had. `by_policy`: policy.toml says so, not the host."""

    index: int
    host: str
    why: str
    by_policy: bool = False

    def __str__(self) -> str:
        return f"mounts[{self.index}].host {self.host}: {self.why}"


class MountRefused(HostError):
    """A mount that may not, or cannot, be had at the moment of a start."""


@dataclass(frozen=True)
class Writable:
    """A host directory that a guest can write: itself first, then each one above it.

    `first`: its sandbox has the older claim, should another want to write the very same directory.
    """

    who: str
    chain: tuple[Identity, ...]
    first: bool


@dataclass(frozen=True)
class Rules:
    """What may not be shared: (what it is, its path) each, the directories that guests of other
    sandboxes can write, and the only directories below which anything may be shared (None: any).

    `ordinary`: the helpers are started by a user who is not root.
    """

    forbidden: tuple[tuple[str, str], ...]
    writable: tuple[Writable, ...] = ()
    prefixes: tuple[str, ...] | None = None
    ordinary: bool = False


def forbidden_places(layout: Layout, config: Config, claims: Path) -> tuple[tuple[str, str], ...]:
    """What no guest may see, whoever asks for it; a path that is not there yet counts as well.

    `claims` is the folder of the registry of identities.
    """
    found = [(f"{path} of the host", path) for path in _KERNEL_FILES]
    found += [
        ("the home of box", str(layout.home)),
        ("the watched folder", os.path.realpath(layout.boxes)),
        ("the policy", os.path.realpath(layout.policy)),
        ("the guest kernels", str(layout.kernels)),
        ("the guest kernels", _CACHE),
        ("the runtime directory", str(layout.runtime)),
        ("the runtime directories", str(layout.runtime.parent)),
        ("the runtime directory", _RUNTIME),
        ("the registry of identities", str(claims)),
    ]
    for named in (config.kernel, config.modules):
        if named is not None:
            found.append(("the guest kernel", os.path.realpath(os.path.expanduser(str(named)))))
    return tuple(found)


def writable_of(box: Boxfile, *, first: bool) -> tuple[Writable, ...]:
    """The host directories that the guest of `box` can write, those that are there."""
    found = (_writable(each, box.name, first) for each in box.mounts if each.mode is MountMode.rw)
    return tuple(each for each in found if each is not None)


def _writable(mount: Mount, who: str, first: bool) -> Writable | None:
    try:
        with opened_directory(expanded(mount.host)) as found:
            return Writable(who, ancestors(found.descriptor), first)
    except OSError:
        return None


def look(box: Boxfile, rules: Rules) -> tuple[tuple[Directory, ...], tuple[Refused, ...]]:
    """Every mount of `box`, resolved or refused (blocking: a few system calls for each part)."""
    with ExitStack() as opened:
        found, refused, _ = _open_all(box, rules, opened)
    return found, refused


@contextmanager
def held(box: Boxfile, rules: Rules) -> Iterator[tuple[tuple[Directory, int], ...]]:
    """Every mount of `box` with its open descriptor. Raises MountRefused with every reason."""
    with ExitStack() as opened:
        found, refused, descriptors = _open_all(box, rules, opened)
        if refused:
            raise MountRefused("; ".join(map(str, refused)))
        yield tuple(zip(found, descriptors, strict=True))


def _open_all(
    box: Boxfile, rules: Rules, opened: ExitStack
) -> tuple[tuple[Directory, ...], tuple[Refused, ...], tuple[int, ...]]:
    found: list[Directory] = []
    refused: list[Refused] = []
    descriptors: list[int] = []
    forbidden = _Forbidden(rules)
    for index, mount in enumerate(box.mounts):
        try:
            at = opened.enter_context(opened_directory(expanded(mount.host)))
            why = _why_not(at, box, index, rules, forbidden)
        except OSError as error:
            refused.append(Refused(index, mount.host, _in_words(error)))
            continue
        if why:
            shown = mount.host if mount.host == at.path else f"{mount.host} ({at.path})"
            refused.append(Refused(index, shown, why, by_policy=why.startswith("mount_prefixes")))
            continue
        owner = (at.uid, at.gid)
        sees = usermounts.sees(box, owner, ordinary=rules.ordinary)
        found.append(Directory(index, mount, at.path, at.identity, owner, sees))
        descriptors.append(at.descriptor)
    return tuple(found), tuple(refused), tuple(descriptors)


def _why_not(at: Opened, box: Boxfile, index: int, rules: Rules, forbidden: _Forbidden) -> str:
    asks_rw = box.mounts[index].mode is MountMode.rw
    writable = (*rules.writable, *_own(box, index))
    if why := forbidden.judge(at, writable, asks_rw=asks_rw):
        return why
    if asks_rw and os.fstatvfs(at.descriptor).f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only: use mode: ro"
    return usermounts.lacking(at, box, asks_rw=asks_rw) if rules.ordinary else ""


def _own(box: Boxfile, index: int) -> Iterator[Writable]:
    """What this sandbox's own guest can write through its other mounts."""
    for number, mount in enumerate(box.mounts):
        if number != index and mount.mode is MountMode.rw:
            found = _writable(mount, box.name, first=number < index)
            if found is not None:
                yield found


def expanded(host: str) -> str:
    """A host path with `~` as the home of the user this process runs as."""
    if host == "~" or host.startswith("~/"):
        return pwd.getpwuid(os.geteuid()).pw_dir + host[1:]
    return host


class _Forbidden:
    """The identities of what may not be shared and of everything above it, looked up once."""

    def __init__(self, rules: Rules) -> None:
        self._within: dict[Identity, str] = {}
        self._above: dict[Identity, str] = {}
        self._root = _lookup("/")
        for what, path in rules.forbidden:
            self._add(what, path)
        self._prefixes: set[Identity] | None = None
        if rules.prefixes is not None:
            self._prefixes = {one for each in rules.prefixes if (one := _lookup(each)) is not None}

    def _add(self, what: str, path: str) -> None:
        """A path that is not there: whatever will hold it counts."""
        there = path
        while not os.path.isdir(there):
            there = os.path.dirname(there)
        try:
            with opened_directory(there) as found:
                chain = ancestors(found.descriptor)
        except OSError:
            return
        if there == path:
            self._within.setdefault(chain[0], what)
        for identity in chain:
            self._above.setdefault(identity, what)

    def judge(self, at: Opened, writable: tuple[Writable, ...], *, asks_rw: bool) -> str:
        """Why the directory may not be shared; empty when it may."""
        chain = ancestors(at.descriptor)
        if at.identity == self._root:
            return "the whole host is never shared"
        for identity in chain:
            if (what := self._within.get(identity)) is not None:
                return f"it is, or lies in, {what}"
        if (what := self._above.get(at.identity)) is not None:
            return f"it holds {what}"
        for other in writable:
            if why := _through(other, at, chain, asks_rw=asks_rw):
                return why
        if self._prefixes is not None and not self._prefixes.intersection(chain):
            return "mount_prefixes: it is below none of the allowed directories"
        return ""


def _through(other: Writable, at: Opened, chain: tuple[Identity, ...], *, asks_rw: bool) -> str:
    """Why a directory cannot be shared because a guest can write `other`.

    Also when it was only passed on the way: that guest decides where a link there leads. Two that
    both write the very same directory are told apart by who was first; else both would be refused.
    """
    written = other.chain[0]
    who = f"the guest of {other.who}"
    if at.identity == written:
        return f"{who} can write it" if other.first or not asks_rw else ""
    if written in chain or written in at.visited:
        return f"its path leads through a directory that {who} can write"
    if at.identity in other.chain:
        return f"it holds a directory that {who} can write"
    return ""


def _lookup(path: str) -> Identity | None:
    try:
        with opened_directory(path) as found:
            return found.identity
    except OSError:
        return None


def _in_words(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    return error.strerror or str(error)
