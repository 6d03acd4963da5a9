"""One thing that was read off a live VMM, beside what it should be.

The vocabulary of the confinement table: whoever reads a VMM makes these, whoever reports prints
them. It must not decide what to do about a difference beyond naming how it could be mended.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Literal

When = Literal["live", "at launch"]
Mend = Literal["in place", "replace", "none"]


@dataclass(frozen=True, slots=True)
class Reading:
    """`layer` names a row of the table in docs/confinement.md, `item` one value of that layer.

    `source` is the file or call it was read from, so that a person can read it again by hand.
    `when` is "at launch" for what /proc does not show: the launcher read it just before execve.
    `mend` says how a difference is removed: changed on the live process, by a new process, or not.
    """

    layer: str
    item: str
    want: str
    got: str
    ok: bool
    source: str
    when: When
    mend: Mend

    def to_plain(self) -> dict[str, str | bool]:
        """Scalars only, in field order; what JSON and TOML writers take."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: object) -> Reading:
        """The reading behind `to_plain()`; raises ValueError for anything else."""
        if not isinstance(data, dict) or set(data) != {field.name for field in fields(cls)}:
            raise ValueError("not a reading: it must have exactly the fields of one")
        if data["when"] not in ("live", "at launch"):
            raise ValueError("not a reading: when")
        if data["mend"] not in ("in place", "replace", "none"):
            raise ValueError("not a reading: mend")
        if not isinstance(data["ok"], bool):
            raise ValueError("not a reading: ok")
        texts = (data["layer"], data["item"], data["want"], data["got"], data["source"])
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("not a reading: a text field is not text")
        return cls(**data)
