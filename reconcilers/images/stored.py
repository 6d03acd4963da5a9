"""What lies in the folder of images: each with its names, its size and who uses it.

Changes nothing. An image without a name is one whose name means another by now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reconcilers import launchrecord
from reconcilers.builds import recipes
from reconcilers.facts import Image
from reconcilers.images.store import Images
from reconcilers.layout import Layout
from specs.boxfile import Boxfile

ITSELF = "box"
"""Who uses the image that the machines of box itself start from."""
OWN = "builtin:busybox"


@dataclass(frozen=True)
class Stored:
    """One image. `bytes` is what it takes on the disk, `used_by` names sandboxes, or ITSELF."""

    digest: str
    names: tuple[str, ...]
    bytes: int
    used_by: tuple[str, ...]


def stored(
    images: Images, layout: Layout, specs: Mapping[str, Boxfile | None]
) -> tuple[Stored, ...]:
    """Every image of the home, of which `specs` are all sandboxes; those in use first.

    A sandbox uses what its Boxfile means, also while it is stopped, and what its VM was started
    from. Raises HostError, OSError: what cannot be read is not taken for unused.
    """
    here = images.present()
    named = images.named()
    users = _users(images, layout, specs, here)
    found = [
        Stored(
            digest,
            tuple(sorted(named.get(digest, ()))),
            _allocated(images.folder / digest),
            tuple(sorted(users.get(digest, ()))),
        )
        for digest in here
    ]
    return tuple(sorted(found, key=lambda each: (not each.used_by, each.names, each.digest)))


def _users(
    images: Images,
    layout: Layout,
    specs: Mapping[str, Boxfile | None],
    here: Mapping[str, Image | None],
) -> Mapping[str, set[str]]:
    users: dict[str, set[str]] = {images.digest_for(OWN): {ITSELF}}
    by_hash = {image.sha256: digest for digest, image in here.items() if image is not None}
    for name, spec in specs.items():
        if spec is not None:
            for digest in (images.digest_for(spec.base), recipes.digest_for(images, spec)):
                users.setdefault(digest, set()).add(name)
        record = launchrecord.read(layout.launch_record(name))
        if record is not None and (started := by_hash.get(record.image_sha256)):
            users.setdefault(started, set()).add(name)
    return users


def _allocated(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
