"""One numeric identity per strict sandbox, claimed for the whole host under one lock.

The registry is durable and can be rebuilt: the controller adopts what its records and live VMMs
say. It must never edit a system file and never hand out an identity that somebody may be using.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator, Sequence
from pathlib import Path

from reconcilers.confinement import ordinary, procfile
from reconcilers.confinement.claims import Claims, ClaimsFile
from reconcilers.confinement.idranges import IdRange, overlaps, ranges_of, standard_choice
from specs.config import ID_MAX, Config
from specs.errors import ConfinementError, Conflict, HostError

__all__ = ["IdRange", "IdentityRegistry", "ranges_of", "standard_uid"]

_HOST_FILES = ("/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid")


def standard_uid(config: Config) -> int:
    """The unprivileged identity shared by root's `isolation: standard` sandboxes.

    Raises HostError when it was not chosen by the configuration and a user or group has it.
    """
    uid = standard_choice(config)
    if config.standard_uid is None and _named(uid):
        raise HostError(
            f"the identity {uid} for standard sandboxes belongs to a user or group of the host",
            where="identity",
            fix="set standard_uid in config.toml to an unprivileged identity",
        )
    return uid


class IdentityRegistry:
    """Claims of the whole host (root), or of all homes of one ordinary user, whose subordinate
    identities are nobody else's. A method that changes one takes the lock and reads the file anew.
    """

    def __init__(self, *, lock: Path | None = None, registry: Path | None = None) -> None:
        folders = Path("/run/box"), Path("/var/lib/box")
        if ordinary.current() is not None:
            folders = ordinary.state_folder(), ordinary.state_folder()
        path = registry or folders[1] / "identities.toml"
        self._file = ClaimsFile(lock or folders[0] / "identities.lock", path)
        self.folder = path.parent
        """Where what is claimed is written down."""

    def claim(
        self,
        instance: str,
        sandbox: str,
        ranges: Sequence[IdRange],
        *,
        roots: Sequence[Path] = (),
        owners: Sequence[str] = (),
    ) -> tuple[int, int]:
        """(uid, gid) of this sandbox: the one it has, else a free one.

        `roots` are the folders in which files of a former owner could remain; those of other
        instances are remembered from their claims. `owners` is the ordinary user whose subordinate
        ranges these are; one that lies in them no more is given up. Raises HostError: "waits: ..."
        (retry) when every identity is taken; ConfinementError where a range overlaps a user, a
        group or a subordinate range of somebody else.
        """
        with self._file.changing() as claims:
            claims.remember_roots(instance, roots)
            held = claims.held.get((instance, sandbox))
            if owners and held is not None and not any(held in each for each in ranges):
                held = None
            if held is None:
                _check_ranges(ranges, owners)
                held = _free(claims, ranges)
                claims.held[(instance, sandbox)] = held
                claims.last = held
                claims.highest = max(claims.highest, held)
            return held, held

    def adopt(self, instance: str, sandbox: str, uid: int, *, roots: Sequence[Path] = ()) -> None:
        """Records what a state file or a live VMM proves. Raises Conflict when another sandbox has
        it, HostError when it can be no sandbox's."""
        if not 0 < uid <= ID_MAX or _named(uid):
            raise HostError(f"{uid} cannot be the identity of a sandbox", where=sandbox)
        with self._file.changing() as claims:
            owner = claims.owner_of(uid)
            if owner is not None and owner != (instance, sandbox):
                raise Conflict(
                    f"the identity {uid} belongs to the sandbox {owner[1]} of instance {owner[0]}",
                    where=sandbox,
                )
            claims.remember_roots(instance, roots)
            claims.held[(instance, sandbox)] = uid
            claims.highest = max(claims.highest, uid)

    def release(self, instance: str, sandbox: str) -> None:
        """Gives the identity up. It is not handed out while a process or file of it remains."""
        with self._file.changing() as claims:
            claims.held.pop((instance, sandbox), None)

    def check(self) -> None:
        """Raises HostError where claims could not be kept: no folder, no right to write there."""
        self._file.check()

    def owner_of(self, uid: int) -> tuple[str, str] | None:
        """(instance, sandbox) that holds `uid`."""
        return self._file.read().owner_of(uid)

    def claimed(self, instance: str) -> dict[str, int]:
        """Sandbox name -> uid of one instance."""
        held = self._file.read().held
        return {sandbox: uid for (whose, sandbox), uid in held.items() if whose == instance}


def host_overlaps(ranges: Sequence[IdRange], owners: Sequence[str] = ()) -> tuple[str, ...]:
    """What of this host the ranges overlap, in words; see `idranges.overlaps`."""
    files = {}
    for path in _HOST_FILES:
        try:
            files[path] = Path(path).read_text(errors="replace")
        except FileNotFoundError:
            continue  # a host without subordinate identities
    return overlaps(ranges, files, owners=owners)


def _check_ranges(ranges: Sequence[IdRange], owners: Sequence[str]) -> None:
    if found := host_overlaps(ranges, owners):
        fix = "set uid_first and uid_count in config.toml to a range nobody uses"
        raise ConfinementError(
            f"the range of identities overlaps what the host uses: {'; '.join(found)}",
            layer="identity",
            where="identity",
            fix="correct the lines in /etc/subuid and /etc/subgid" if owners else fix,
        )


def _free(claims: Claims, ranges: Sequence[IdRange]) -> int:
    """The next identity after the last one handed out, so that reuse is as late as possible."""
    taken = set(claims.held.values())
    running = _running()
    leftovers: set[int] | None = None
    blocked = 0
    downwards = any(each.downwards for each in ranges)  # then lower is no proof of never used
    for uid in _in_turn(ranges, claims.last):
        if uid in taken:
            continue
        if uid in running or _named(uid):
            blocked += 1
            continue
        if uid <= claims.highest or not claims.surveyed or downwards:
            # it may have had an owner before: look once, and only then
            if leftovers is None:
                leftovers = set(_owners(claims.all_roots(), ranges))
                claims.highest = max({claims.highest, *leftovers})
                claims.surveyed = True
            if uid in leftovers:
                blocked += 1
                continue
        return uid
    more = "raise uid_count in config.toml"
    if downwards:
        more = "add a range to /etc/subuid and /etc/subgid"
    total = sum(each.count for each in ranges)
    raise HostError(
        f"waits: all {total} identities of {', '.join(map(str, ranges))} are in use"
        f" ({total - blocked} by sandboxes, {blocked} by what others run or left behind)",
        where="identity",
        fix=f"delete a sandbox, or {more}",
    )


def _in_turn(ranges: Sequence[IdRange], last: int) -> Iterator[int]:
    """Every identity once, beginning after `last`."""
    start = next((number for number, each in enumerate(ranges) if last in each), None)
    if start is None:
        for each in ranges:
            yield from each.numbers()
        return
    numbers = ranges[start].numbers()
    done = numbers.index(last) + 1
    yield from numbers[done:]
    for each in (*ranges[start + 1 :], *ranges[:start]):
        yield from each.numbers()
    yield from numbers[:done]


def _named(uid: int) -> bool:
    """Whether a user or group has it, also one that only the name service knows."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        pass
    else:
        return True
    try:
        grp.getgrgid(uid)
    except KeyError:
        return False
    return True


def _running() -> set[int]:
    """Every user and group identity of every process on the host."""
    found: set[int] = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = procfile.fields(f"/proc/{entry}/status")
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended since it was listed
            for name in ("Uid", "Gid", "Groups"):
                found.update(map(int, status.get(name, "").split()))
    return found


def _owners(roots: Sequence[str], ranges: Sequence[IdRange]) -> Iterator[int]:
    """Identities of the ranges that own something below the roots. Links are not followed."""
    waiting = [root for root in roots if os.path.isdir(root)]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue  # removed since it was listed
        for entry in entries:
            try:
                facts = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            for number in (facts.st_uid, facts.st_gid):
                if any(number in each for each in ranges):
                    yield number
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
