"""`about.json` beside an image: where it is from, and what it says of the program it is for.

Every text in it is the image's own, and whatever stands in the file is taken for that: it may only
become variables of commands in the guest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from reconcilers.facts import Image
from reconcilers.images.manifest import Settings
from reconcilers.smallfile import read_small
from specs.errors import HostError

NAME = "about.json"
VARIABLES_MAX = 1000  # as many as a Boxfile may have
BYTES_MAX = 32 << 10  # together; they are part of a launch record
FILE_MAX = 1 << 20  # bytes
_UNUSED_MAX = 64 << 10  # characters of JSON, of each thing that is kept to be looked at alone


def written(base: str, identity: str, settings: Settings, notes: Sequence[str]) -> str:
    """The text of the file. What of it an image has made too long to be read again is not in it."""
    image = asdict(settings) | {"env": _variables(settings.env)}
    long = [key for key in image if key != "env" and len(json.dumps(image[key])) > _UNUSED_MAX]
    kept = {key: value for key, value in image.items() if key not in long}
    told = [*notes, *(f"its {key} is too long to be kept" for key in long)]
    said = {"base": base, "identity": identity, "notes": told, "image": kept}
    return json.dumps(said, indent=1) + "\n"


def on_top(base: Image, steps: int, left_out: int) -> str:
    """The text for an image that was built on `base` by so many steps: what that says of itself
    holds for it as well.
    """
    try:
        said = json.loads(read_small(base.path.parent / NAME, FILE_MAX))
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
        said = json.loads(read_small(folder / NAME, FILE_MAX))["identity"]
    except (OSError, HostError, ValueError, LookupError, TypeError, RecursionError):
        return ""
    return said if isinstance(said, str) else ""


def environment_of(image: Image) -> tuple[str, ...]:
    """The `NAME=VALUE` that commands in it have unless they are told otherwise; what cannot be one
    is left out, and an image that says nothing has none.
    """
    try:
        said = json.loads(read_small(image.path.parent / NAME, FILE_MAX))["image"]["env"]
    except (OSError, HostError, ValueError, LookupError, TypeError, RecursionError):
        return ()
    return _variables(said if isinstance(said, list) else ())


def _variables(said: Iterable[object]) -> tuple[str, ...]:
    found, size = list[str](), 0
    for each in said:
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
