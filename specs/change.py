"""What differs between two Boxfiles, field by field, and what each difference does to the VM.

Pure comparison for `box diff` and the planner. It must not know the host: what a step really needs
is the planner's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specs.boxfile import Boxfile
from specs.recipe import steps

Effect = Literal["create", "start", "in-place", "replace", "stop", "delete", "none"]

# Everything else is fixed when the VMM starts, so a change of it needs a new one.
_IN_PLACE = frozenset(
    {"timeout_seconds", "env", "labels", "restart", "data", "egress", "fork_of", "pull"}
)
# What the image is built from. The packages in another order, or a package manager without packages
# to install, change nothing of it.
_BUILDS = frozenset({"packages", "pkgmgr", "run", "blueprint"})
# Fields that are shown by their parts.
_MAPS = frozenset({"env", "labels", "data"})


@dataclass(frozen=True, slots=True)
class Change:
    """One field. `old` and `new` are as written in a Boxfile, empty where there is nothing."""

    field: str
    old: str
    new: str
    effect: Effect


def changes(old: Boxfile | None, new: Boxfile | None) -> tuple[Change, ...]:
    """Every difference, in the order of the fields; empty exactly when the digests are equal.

    None stands for "no sandbox": all written fields are then created or deleted. A field of a
    sandbox that is and stays without a VM, or gets or loses one by the same change, has the effect
    `none`.
    """
    if old is None or new is None:
        effect: Effect = "create" if old is None else "delete"
        before, after = _flat(old), _flat(new)
        return tuple(_change(field, before, after, effect) for field in {**before, **after})
    before, after = _flat(old, new), _flat(new, old)
    return tuple(
        _change(field, before, after, _effect(field, old, new))
        for field in {**before, **after}
        if before.get(field) != after.get(field)
    )


def _change(
    field: str, before: Mapping[str, str], after: Mapping[str, str], effect: Effect
) -> Change:
    return Change(field, before.get(field, ""), after.get(field, ""), effect)


def _effect(field: str, old: Boxfile, new: Boxfile) -> Effect:
    top = field.partition(".")[0]
    if top == "state":
        return "stop" if new.state == "stopped" else "start"
    # The environment reaches every step of a build, so another one makes another image.
    if top in _IN_PLACE and not (top == "env" and steps(new)):
        return "in-place"
    if top in _BUILDS and steps(old) == steps(new):
        return "none"
    return "replace" if old.state == new.state == "running" else "none"


def _flat(box: Boxfile | None, other: Boxfile | None = None) -> dict[str, str]:
    """Written fields of `box` as text, with `other` also those that only `other` writes."""
    if box is None:
        return {}
    full = box.model_dump(mode="json")
    written = {**box.to_plain(), **(other.to_plain() if other else {})}
    flat: dict[str, str] = {}
    for field in (name for name in full if name in written):
        value = full[field]
        if field in _MAPS and isinstance(value, Mapping):
            chosen = written[field] if field == "data" and other is None else value
            flat |= {f"{field}.{key}": _text(value[key]) for key in chosen}
        elif value is not None:
            flat[field] = _text(value)
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
