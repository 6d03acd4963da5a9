"""Ranges of numeric identities, and what of a host they may not overlap.

Pure: the text of the host's files in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specs.config import ID_MAX, Config

_SUBORDINATE = ("subuid", "subgid")


@dataclass(frozen=True, slots=True)
class IdRange:
    """`count` identities from `first`, used for UID and GID alike. `downwards`: handed out from the
    top: the user's own containers take theirs from the bottom."""

    first: int
    count: int
    downwards: bool = False

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def numbers(self) -> range:
        """In the order they are handed out."""
        upwards = range(self.first, self.last + 1)
        return upwards[::-1] if self.downwards else upwards

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def all_subordinate(text: str) -> tuple[IdRange, ...]:
    """Every range of subuid(5) or subgid(5)."""
    return tuple(found for _, found, _ in _taken("subuid", text) if _sane(found))


def subordinate_to(text: str, owners: Sequence[str]) -> tuple[IdRange, ...]:
    """The ranges of subuid(5) or subgid(5) that belong to one user, by name or number."""
    taken = _taken("subuid", text)
    return tuple(found for _, found, owner in taken if owner in owners and _sane(found))


def subordinate_ranges(subuid: str, subgid: str, owners: Sequence[str]) -> tuple[IdRange, ...]:
    """What a user may map as UID and as GID, line by line, no number twice."""
    free: list[IdRange] = []
    for uids in subordinate_to(subuid, owners):
        for gids in subordinate_to(subgid, owners):
            first, last = max(uids.first, gids.first), min(uids.last, gids.last)
            free += _without(IdRange(first, last - first + 1), free)
    return tuple(IdRange(each.first, each.count, downwards=True) for each in free)


def _without(one: IdRange, others: Sequence[IdRange]) -> list[IdRange]:
    """What of a range lies in none of the others."""
    left = [one] if one.count > 0 else []
    for other in others:
        pieces = []
        for each in left:
            below = IdRange(each.first, min(each.last, other.first - 1) - each.first + 1)
            start = max(each.first, other.last + 1)
            above = IdRange(start, each.last - start + 1)
            pieces += [piece for piece in (below, above) if piece.count > 0]
        left = pieces
    return left


def ranges_of(config: Config) -> tuple[IdRange, ...]:
    """The ranges strict sandboxes take their identity from, in the order they are used."""
    return (IdRange(config.uid_first, config.uid_count),)


def standard_choice(config: Config) -> int:
    """The configured identity of root's standard sandboxes, else the one beside the strict range.

    Never inside: a standard sandbox would own a strict one's files. Config refuses that.
    """
    if config.standard_uid is not None:
        return config.standard_uid
    return config.uid_first - 1 if config.uid_first > 1 else config.uid_first + config.uid_count


def overlaps(
    ranges: Sequence[IdRange], files: Mapping[str, str], *, owners: Sequence[str] = ()
) -> tuple[str, ...]:
    """What of the host a range overlaps, in words; `files` maps path to content. Subordinate ranges
    of `owners` are meant to be used and do not count.

    Understood by the end of the name: passwd(5), group(5), subuid(5) and subgid(5). Also ranges
    that overlap each other or leave the numbers there are.
    """
    found = [f"{each} is no range of identities" for each in ranges if not _sane(each)]
    for number, one in enumerate(ranges):
        found += [f"{one} and {two}" for two in ranges[:number] if _overlap(one, two)]
    for path, text in files.items():
        for line_number, taken, owner in _taken(path, text):
            if owner in owners and path.endswith(_SUBORDINATE):
                continue
            for each in ranges:
                if _overlap(each, taken):
                    found.append(f"{each} and {taken} of {owner} ({path}:{line_number})")
    return tuple(found)


def _sane(one: IdRange) -> bool:
    return one.first > 0 and one.count > 0 and one.last <= ID_MAX


def _overlap(one: IdRange, two: IdRange) -> bool:
    return one.first <= two.last and two.first <= one.last


def _taken(path: str, text: str) -> Iterator[tuple[int, IdRange, str]]:
    subordinate = path.endswith(_SUBORDINATE)
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(":")
        try:
            if subordinate:
                yield number, IdRange(int(words[1]), int(words[2])), words[0]
            else:
                yield number, IdRange(int(words[2]), 1), words[0]
        except (IndexError, ValueError):
            continue  # a comment, or a line the C library ignores too
