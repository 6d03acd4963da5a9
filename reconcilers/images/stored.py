"""What is kept for the next start: images, and the finished steps of builds, with who uses them.

Changes nothing. An image without a name is one whose name means another by now, or one that steps
made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reconcilers import launchrecord
from reconcilers.builds import cache, recipes
from reconcilers.facts import Image
from reconcilers.images.store import OWN, Images
from reconcilers.layout import Layout
from specs.boxfile import Boxfile

ITSELF = "box"
"""Who uses the image that the machines of box itself start from."""


@dataclass(frozen=True)
class Stored:
    """One image, or what a step of a build left. `bytes` is what it takes on the disk; `used_by`
    names sandboxes, or ITSELF. The digest of a step is the key of its folder.
    """

    digest: str
    names: tuple[str, ...]
    bytes: int
    used_by: tuple[str, ...]
    kind: Literal["image", "step"] = "image"


def stored(
    images: Images, layout: Layout, specs: Mapping[str, Boxfile | None]
) -> tuple[Stored, ...]:
    """Everything of the home, of which `specs` are all sandboxes; images first, and of each kind
    those in use.

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
    found += _steps(images, layout, specs)
    return tuple(
        sorted(found, key=lambda each: (each.kind, not each.used_by, each.names, each.digest))
    )


def _steps(images: Images, layout: Layout, specs: Mapping[str, Boxfile | None]) -> Iterator[Stored]:
    users: dict[str, set[str]] = {}
    titles: dict[str, str] = {}
    for name, spec in specs.items():
        base = images.digest_for(spec.base) if spec is not None else ""
        recipe = recipes.recipe_of(spec, base) if spec is not None and base else None
        for stage in recipe.stages if recipe is not None else ():
            for key in map(cache.folder_of, (stage.key, stage.alone)):
                users.setdefault(key, set()).add(name)
                titles[key] = stage.steps[-1].title
    for key, size in cache.kept(layout.builds):
        names = (titles[key],) if key in titles else ()
        yield Stored(key, names, size, tuple(sorted(users.get(key, ()))), "step")


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
            for digest in recipes.digests_of(images, spec):
                users.setdefault(digest, set()).add(name)
        record = launchrecord.read(layout.launch_record(name))
        if record is not None:
            # One of an older version says only what is in its image, which another may hold, too.
            started = record.image_digest or by_hash.get(record.image_sha256, "")
            users.setdefault(started, set()).add(name)
    return users


def _allocated(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
