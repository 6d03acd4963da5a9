"""`about.json` beside an image: where it is from, and what it says of the program it is for.

Every text in it is the image's own, and whatever stands in the file is taken for that: it may only
become variables of commands in the guest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from reconcilers.facts import Image
from reconcilers.images.manifest import Settings
from reconcilers.smallfile import read_small
from specs.errors import HostError

NAME = "about.json"
VARIABLES_MAX = 1000  # as many as a Boxfile may have
BYTES_MAX = 32 << 10  # together; they are part of a launch record


def written(base: str, identity: str, settings: Settings, notes: Sequence[str]) -> str:
    """The text of the file."""
    said = {"base": base, "identity": identity, "notes": [*notes], "image": asdict(settings)}
    return json.dumps(said, indent=1) + "\n"


def on_top(base: Image, steps: int, left_out: int) -> str:
    """The text for an image that was built on `base` by so many steps: what that says of itself
    holds for it as well.
    """
    try:
        said = json.loads(read_small(base.path.parent / NAME))
    except (OSError, HostError, ValueError, RecursionError):
        said = {}
    notes = [f"{left_out} FIFOs, sockets and devices are left out"] if left_out else []
    told = said if isinstance(said, dict) else {}
    of_base = {key: told[key] for key in ("base", "identity", "image") if key in told}
    return json.dumps(of_base | {"built_on": base.digest, "steps": steps, "notes": notes}) + "\n"


def identity_of(folder: Path) -> str:
    """What the base of the image in this folder was when it was made; empty when it does not say,
    as one that steps made in an older version.
    """
    try:
        said = json.loads(read_small(folder / NAME))["identity"]
    except (OSError, HostError, ValueError, LookupError, TypeError, RecursionError):
        return ""
    return said if isinstance(said, str) else ""


def environment_of(image: Image) -> tuple[str, ...]:
    """The `NAME=VALUE` that commands in it have unless they are told otherwise; what cannot be one
    is left out, and an image that says nothing has none.
    """
    try:
        said = json.loads(read_small(image.path.parent / NAME))["image"]["env"]
    except (OSError, HostError, ValueError, LookupError, TypeError, RecursionError):
        return ()
    found, size = list[str](), 0
    for each in said if isinstance(said, list) else []:
        if not isinstance(each, str) or not _is_variable(each):
            continue
        size += len(each.encode())
        if size > BYTES_MAX or len(found) == VARIABLES_MAX:
            break
        found.append(each)
    return tuple(found)


def _is_variable(text: str) -> bool:
    name, equals, value = text.partition("=")
    plain = name.isascii() and name.isprintable() and " " not in name
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can write half of a character
        return False
    return bool(name and equals and plain and "\0" not in value)
