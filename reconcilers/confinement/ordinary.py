"""What an ordinary user brings to a jail: his identities, his groups, his access to /dev/kvm.

Root has no such limits: `current` is None then. It must not change anything, and it never answers
with less than was asked: what is missing is an error that names the fix.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from reconcilers.confinement.idranges import (
    IdRange,
    all_subordinate,
    subordinate_ranges,
    subordinate_to,
)
from reconcilers.confinement.policy import UserNamespace
from specs.errors import ConfinementError

SUBUID, SUBGID = Path("/etc/subuid"), Path("/etc/subgid")
KVM = Path("/dev/kvm")
LAYER = "user namespace"
_FIRST, _COUNT = 100_000, 65_536  # as useradd(8) does, see login.defs(5)
INSIDE = 1  # what a VMM's UID and GID are called in its user namespace; 0 is the user, for set-up
_INSIDE_EXTRA = 2


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    """`ranges` are for strict sandboxes, in the order they are used. `mapped_gids` are all groups
    that /etc/subgid lets the user map."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    ranges: tuple[IdRange, ...]
    mapped_gids: tuple[IdRange, ...]

    def may_map(self, gid: int) -> bool:
        return any(gid in each for each in self.mapped_gids)


def current() -> OrdinaryUser | None:
    """The user this process belongs to, None for root. Reads the files again when they changed."""
    if os.geteuid() == 0:
        return None
    return _read((_signature(SUBUID), _signature(SUBGID)))


def state_folder() -> Path:
    """What all homes of one user share: $XDG_STATE_HOME/box, else ~/.local/state/box."""
    chosen = os.environ.get("XDG_STATE_HOME", "")
    if chosen.startswith("/"):
        return Path(chosen) / "box"
    return Path(_home()) / ".local/state/box"


def _home() -> str:
    """HOME, as everything else of the user takes it; else what the user database says."""
    home = os.environ.get("HOME", "")
    if home.startswith("/"):
        return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/nonexistent"


def _signature(path: Path) -> tuple[int, int, int]:
    try:
        facts = path.stat()
    except OSError:
        return 0, 0, 0
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


@lru_cache(maxsize=2)
def _read(_: object) -> OrdinaryUser:
    uid = os.geteuid()
    return _user(uid, os.getegid(), os.getgroups(), _name(uid))


def of_uid(uid: int) -> OrdinaryUser:
    """Another user, as after a login. Raises KeyError when there is none."""
    known = pwd.getpwuid(uid)
    return _user(uid, known.pw_gid, os.getgrouplist(known.pw_name, known.pw_gid), known.pw_name)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _user(uid: int, gid: int, groups: Sequence[int], name: str) -> OrdinaryUser:
    texts = []
    for path in (SUBUID, SUBGID):
        try:
            texts.append(path.read_text(errors="replace"))
        except FileNotFoundError:
            texts.append("")
    return OrdinaryUser(
        name=name,
        uid=uid,
        gid=gid,
        groups=tuple(sorted(set(groups))),
        ranges=subordinate_ranges(texts[0], texts[1], (name, str(uid))),
        mapped_gids=subordinate_to(texts[1], (name, str(uid))),
    )


def ranges_for_strict(user: OrdinaryUser) -> tuple[IdRange, ...]:
    """Where a strict sandbox's identity comes from. Raises ConfinementError when there is none."""
    if user.ranges:
        return user.ranges
    raise ConfinementError(
        f"{SUBUID} and {SUBGID} have no common range for {user.name}: isolation: strict needs a "
        "host UID for each sandbox",
        layer="identity",
        fix=range_fix(user),
    )


def range_fix(user: OrdinaryUser) -> str:
    """What gives the user a range that nobody has."""
    return f"sudo {' '.join(range_command(user))}"


def range_command(user: OrdinaryUser) -> list[str]:
    """usermod(8) with a range above all that are given."""
    taken = [_FIRST]
    for path in (SUBUID, SUBGID):
        with contextlib.suppress(OSError):
            taken += [each.last + 1 for each in all_subordinate(path.read_text(errors="replace"))]
    first = -(-max(taken) // _COUNT) * _COUNT
    span = f"{first}-{first + _COUNT - 1}"
    return ["usermod", "--add-subuids", span, "--add-subgids", span, user.name]


def user_namespace_for(
    user: OrdinaryUser,
    *,
    strict: bool,
    uid: int,
    gid: int,
    kvm: bool,
    access: Callable[[OrdinaryUser, bool], int | None] | None = None,
) -> tuple[UserNamespace, tuple[int, ...]]:
    """(the user namespace of one VMM, the groups it has on the host).

    strict: inside 0 is the user, for setting up; inside 1 the identity of this sandbox alone.
    standard: inside 1 is the user; without groups to drop and without a group for KVM nothing else
    is mapped, which needs no newuidmap. Raises ConfinementError when the user may not map what it
    takes.
    """
    kvm_gid = (access or kvm_group)(user, strict) if kvm else None
    groups = () if kvm_gid is None else (kvm_gid,)
    extra = () if kvm_gid is None else ((_INSIDE_EXTRA, kvm_gid, 1),)
    if strict:
        return UserNamespace(
            uid_map=((0, user.uid, 1), (INSIDE, uid, 1)),
            gid_map=((0, user.gid, 1), (INSIDE, gid, 1), *extra),
            setgroups=True,
        ), groups
    own = UserNamespace(((INSIDE, user.uid, 1),), ((INSIDE, user.gid, 1),), setgroups=False)
    if not extra and set(user.groups) <= {user.gid}:
        return own, user.groups
    if not extra:
        # newgidmap lets groups be set only where a subordinate one is mapped; nobody has this one
        extra = ((_INSIDE_EXTRA, _spare(user), 1),)
    return UserNamespace(own.uid_map, (*own.gid_map, *extra), setgroups=True), groups


def _spare(user: OrdinaryUser) -> int:
    if user.ranges:
        return user.ranges[-1].first
    if user.mapped_gids:
        return user.mapped_gids[-1].first
    raise ConfinementError(
        f"the groups of {user.name} would stay with the VMM: without a line in {SUBGID} they "
        "cannot be dropped",
        layer="identity",
        fix=range_fix(user),
    )


def kvm_group(user: OrdinaryUser, strict: bool) -> int | None:
    """The group a VMM needs for /dev/kvm, None when it needs none. Raises ConfinementError."""
    try:
        node = KVM.stat()
    except OSError as error:
        raise ConfinementError(f"{KVM}: {error.strerror}", layer=LAYER) from error
    if node.st_mode & stat.S_IROTH and node.st_mode & stat.S_IWOTH:
        return None
    shared = bool(node.st_mode & stat.S_IRGRP and node.st_mode & stat.S_IWGRP)
    by_group = shared and node.st_gid in {*user.groups, user.gid}
    if not strict and not by_group and os.access(KVM, os.R_OK | os.W_OK):
        return None  # as its owner, or by an access list that names the user
    if shared and node.st_gid and user.may_map(node.st_gid):
        return node.st_gid
    raise ConfinementError(
        f"a VMM of {user.name} may not open {KVM} ({stat.filemode(node.st_mode)}, group "
        f"{node.st_gid})",
        layer=LAYER,
        where=str(KVM),
        fix=kvm_fix(user, node.st_gid if shared else 0),
    )


def kvm_fix(user: OrdinaryUser, gid: int) -> str:
    if not gid:
        return f"give {KVM} to the group kvm (chgrp kvm, chmod 0660), then run ./dev setup again"
    return f"sudo usermod --add-subgids {gid}-{gid} {user.name}"
