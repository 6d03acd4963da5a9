"""What a running VMM was started for, when its Boxfile has changed since.

Its walls are judged against that: a wall that a newer text asks for is no wall that the process
lost, and it may run on until everything the new text needs is known to be there. Pure.
"""

from __future__ import annotations

import hashlib
import json

from specs import recipe
from specs.boxfile import Boxfile
from specs.imagename import parse_image

# Those parts of `host.launch_key` that its jail follows from, word for word; what may change while
# it runs is not among them.
_FIELDS = {"cpus", "ram_mib", "isolation", "network", "readonly", "mounts"}


def settings_of(box: Boxfile) -> str:
    """What the launch record keeps of the Boxfile."""
    return json.dumps(box.model_dump(mode="json", include=_FIELDS), sort_keys=True)


def image_of(box: Boxfile) -> str:
    """Names what the Boxfile says of its image: the base, and what is built on it. What that base
    means is not in it.
    """
    steps = [(each.argv, each.stdin.hex()) for each in recipe.steps(box)]
    said = [str(parse_image(box.base)), steps, sorted(box.env.items()) if steps else []]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def as_launched(box: Boxfile, settings: str) -> Boxfile:
    """`box` with the settings its VMM was started with; `box` itself when they are the same.

    A record that says nothing sensible about them (an older one) is taken to say the same.
    """
    if not settings or settings == settings_of(box):
        return box
    try:
        found = json.loads(settings)
        if not isinstance(found, dict) or found.keys() != _FIELDS:
            return box
        return Boxfile.model_validate(box.to_plain() | found)
    except ValueError:
        return box
