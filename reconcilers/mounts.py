"""Which host directories a Boxfile shares, where its paths lead, and whether they may be shared.

Everything is judged on an open descriptor, by device and inode: what is refused stays refused under
any other name it has. It starts nothing and must not open a directory for anything but looking.
"""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from reconcilers import usermounts
from reconcilers.hostpath import Identity, Opened, ancestors, opened_directory
from reconcilers.inthread import to_end
from reconcilers.mountplaces import Place, Places, out_of_reach
from specs.boxfile import Boxfile, Mount, MountMode
from specs.errors import HostError
from specs.text import visible

PATH_SHOWN = 1000  # characters of a path in a report
_OURS_TO_BLAME = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True)
class Directory:
    """One mount, resolved: `path` has no link in it and is for showing alone, `owner` is (user,
    group) on the host. `sees` says in words which files below it the helper may open.
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
    """What may not be shared, what may be but not to be written, the directories that guests of
    other sandboxes can write, and the only directories below which anything may be shared (None:
    any).

    `ordinary`: the helpers are started by a user who is not root.
    """

    forbidden: tuple[Place, ...]
    unwritable: tuple[Place, ...] = ()
    writable: tuple[Writable, ...] = ()
    prefixes: tuple[str, ...] | None = None
    ordinary: bool = False


def writable_of(box: Boxfile, *, first: bool) -> tuple[Writable, ...]:
    """The host directories that the guest of `box` can write, those that are there."""
    found = (_writable(each, box.name, first) for each in box.mounts if each.mode is MountMode.rw)
    return tuple(each for each in found if each is not None)


def _writable(mount: Mount, who: str, first: bool) -> Writable | None:
    try:
        with opened_directory(expanded(mount.host)) as found:
            return Writable(who, ancestors(found.descriptor), first)
    except OSError as error:
        if out_of_reach(error):
            return None
        raise HostError(f"a directory that {who} may write cannot be looked at: {error}") from error


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


async def entered(
    box: Boxfile, rules: Callable[[], Rules], opened: ExitStack
) -> tuple[tuple[Directory, int], ...]:
    """`held` for as long as `opened`, looked up in a thread: a host directory may be on a file
    system that takes its time."""

    def enter() -> tuple[tuple[Directory, int], ...]:
        return opened.enter_context(held(box, rules()))

    return await to_end(enter)  # else it would open what nobody closes any more


def why_not_read(at: Opened, rules: Rules, *, file: bool) -> str:
    """Why a guest may not be given a copy of a directory, or of one `file` in it, because a Boxfile
    names it; empty when it may. A guest that can write a folder decides where a path through it
    leads, and then what of the host another guest would get to see.
    """
    chain, places = ancestors(at.descriptor), Places(rules.forbidden)
    if why := places.why_not_in(chain) if file else places.why_not(chain):
        return why
    for other in rules.writable:
        written = other.chain[0]
        if written in chain or written in at.visited:
            return f"its path leads through a directory that the guest of {other.who} can write"
        if not file and at.identity in other.chain:
            return f"it holds a directory that the guest of {other.who} can write"
    return ""


def _open_all(
    box: Boxfile, rules: Rules, opened: ExitStack
) -> tuple[tuple[Directory, ...], tuple[Refused, ...], tuple[int, ...]]:
    found: list[Directory] = []
    refused: list[Refused] = []
    descriptors: list[int] = []
    judge = _Judge(rules)
    for index, mount in enumerate(box.mounts):
        path = mount.host
        try:
            path = expanded(path)
            at = opened.enter_context(opened_directory(path))
            why = _why_not(at, box, index, rules, judge)
        except OSError as error:
            if error.errno in _OURS_TO_BLAME:  # which says nothing about the directory
                raise
            refused.append(_refusal(index, mount, path, _in_words(error)))
            continue
        if why:
            refused.append(_refusal(index, mount, at.path, why))
            continue
        owner = (at.uid, at.gid)
        sees = usermounts.sees(box, owner, ordinary=rules.ordinary)
        path = visible(at.path, PATH_SHOWN)
        found.append(Directory(index, mount, path, at.identity, owner, sees))
        descriptors.append(at.descriptor)
    return tuple(found), tuple(refused), tuple(descriptors)


def _refusal(index: int, mount: Mount, path: str, why: str) -> Refused:
    """A link may lead through names that are no text, and control a terminal."""
    shown = mount.host if mount.host == path else f"{mount.host} ({visible(path, PATH_SHOWN)})"
    by_policy = why.startswith("mount_prefixes")
    return Refused(index, shown, visible(why, 2 * PATH_SHOWN), by_policy=by_policy)


def _why_not(at: Opened, box: Boxfile, index: int, rules: Rules, judge: _Judge) -> str:
    asks_rw = box.mounts[index].mode is MountMode.rw
    writable = (*rules.writable, *_own(box, index))
    if why := judge.why_not(at, writable, asks_rw=asks_rw):
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
    """A host path with `~` as the home of the user this process runs as. Raises OSError when that
    one has none.
    """
    if host != "~" and not host.startswith("~/"):
        return host
    user = os.geteuid()
    try:
        return pwd.getpwuid(user).pw_dir + host[1:]
    except KeyError:
        why = f"the user database knows no home of the controller's user (UID {user})"
        raise NotADirectoryError(errno.ENOTDIR, why, host) from None


class _Judge:
    """What the rules mean on this host now, looked up once for all mounts of a sandbox."""

    def __init__(self, rules: Rules) -> None:
        self._root = _lookup("/")
        self._forbidden = Places(rules.forbidden)
        self._unwritable = Places(rules.unwritable)
        self._prefixes: set[Identity] | None = None
        if rules.prefixes is not None:
            self._prefixes = {one for each in rules.prefixes if (one := _lookup(each)) is not None}

    def why_not(self, at: Opened, writable: tuple[Writable, ...], *, asks_rw: bool) -> str:
        """Why the directory may not be shared; empty when it may."""
        chain = ancestors(at.descriptor)
        if at.identity == self._root:
            return "the whole host is never shared"
        if why := self._forbidden.why_not(chain):
            return why
        if asks_rw and (why := self._unwritable.why_not(chain)):
            return f"{why}, which a guest must not write"
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
    if isinstance(error, PermissionError):
        return f"the user of the controller (UID {os.geteuid()}) may not go there"
    return error.strerror or str(error)
