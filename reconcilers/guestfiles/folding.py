"""Names of one directory that are one and the same on other systems: pure.

Some file systems take upper and lower case, or the composed and the decomposed form of a letter,
for the same. Where ours does, the second name cannot be made, which is seen when it is tried; where
it does not, both are written, and this says which pairs would not survive a copy to such a
system.
"""

from __future__ import annotations

from unicodedata import normalize


def folded(name: bytes) -> bytes | str:
    """What such a system sees in a name. What is no UTF-8 is itself."""
    if name.isascii():
        return name.lower().decode()
    try:
        return normalize("NFC", normalize("NFC", name.decode()).casefold())
    except UnicodeDecodeError:
        return name


class Folder:
    """The names of one directory so far."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[bytes | str, bytes] = {}

    def twin(self, name: bytes) -> bytes | None:
        """An earlier name that is the same elsewhere, if there is one; `name` is remembered."""
        earlier = self._seen.setdefault(folded(name), name)
        return None if earlier == name else earlier
