"""Ranges of numeric identities, and what of a host they may not overlap.

Pure: the text of the host's files in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specs.config import ID_MAX, Config


@dataclass(frozen=True, slots=True)
class IdRange:
    """`count` identities from `first`, used for UID and GID alike."""

    first: int
    count: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


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


def overlaps(ranges: Sequence[IdRange], files: Mapping[str, str]) -> tuple[str, ...]:
    """What of the host a range overlaps, in words; `files` maps path to content.

    Understood by the end of the name: passwd(5), group(5), subuid(5) and subgid(5). Also ranges
    that overlap each other or leave the numbers there are.
    """
    found = [f"{each} is no range of identities" for each in ranges if not _sane(each)]
    for number, one in enumerate(ranges):
        found += [f"{one} and {two}" for two in ranges[:number] if _overlap(one, two)]
    for path, text in files.items():
        for line_number, taken, owner in _taken(path, text):
            for each in ranges:
                if _overlap(each, taken):
                    found.append(f"{each} and {taken} of {owner} ({path}:{line_number})")
    return tuple(found)


def _sane(one: IdRange) -> bool:
    return one.first > 0 and one.count > 0 and one.last <= ID_MAX


def _overlap(one: IdRange, two: IdRange) -> bool:
    return one.first <= two.last and two.first <= one.last


def _taken(path: str, text: str) -> Iterator[tuple[int, IdRange, str]]:
    subordinate = path.endswith(("subuid", "subgid"))
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(":")
        try:
            if subordinate:
                yield number, IdRange(int(words[1]), int(words[2])), words[0]
            else:
                yield number, IdRange(int(words[2]), 1), words[0]
        except (IndexError, ValueError):
            continue  # a comment, or a line the C library ignores too
