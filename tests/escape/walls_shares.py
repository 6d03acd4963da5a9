"""Walls around shared directories, as the saboteur takes them away.

Importing this module adds them to `walls.WALLS`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent import build
from tests.escape.saboteur import Product
from tests.escape.walls import IN_THE_LAUNCHER, WALLS, in_the_launcher, wall

IN_THE_LAUNCHER["read-only share"] = """
from reconcilers.confinement import document
written = launch.Document.from_bytes
def writable(data):
    found = written(data)
    for each in found.shares:
        each.writable = True
    return found
launch.Document.from_bytes = staticmethod(writable)
"""
IN_THE_LAUNCHER["nodev share"] = """
from reconcilers.confinement import jailshare
jailshare.ATTRIBUTES &= ~syscalls.MOUNT_ATTR_NODEV
"""
for _name in ("read-only share", "nodev share"):
    WALLS[_name] = in_the_launcher(_name)


@wall("links stay links")
def _links_stay_links(product: Product) -> None:
    """Links in a shared directory are followed on the host: their targets lie in their place."""

    @contextlib.contextmanager
    def followed(held: Any, *given: Any) -> Iterator[Any]:
        with held(*given) as found:
            for _, descriptor in found:
                for path in Path(f"/proc/self/fd/{descriptor}").resolve().iterdir():
                    if path.is_symlink() and path.is_file():
                        content = path.read_bytes()
                        path.unlink()
                        path.write_bytes(content)
            yield found

    product.around("reconcilers.mounts.held", followed)


@wall("a link that comes later")
def _later_link(product: Product) -> None:
    """As if the folder `swap`, while it is a link, were followed by the one who serves it."""

    def follow(top: Path) -> None:
        while True:
            with contextlib.suppress(OSError):
                if (top / "swap").is_symlink():
                    (top / "away" / "word").write_bytes((top / "swap" / "word").read_bytes())
            time.sleep(0.001)

    @contextlib.contextmanager
    def followed(held: Any, *given: Any) -> Iterator[Any]:
        with held(*given) as found:
            for _, descriptor in found:
                top = Path(f"/proc/self/fd/{descriptor}").resolve()
                threading.Thread(target=follow, args=(top,), daemon=True).start()
            yield found

    product.around("reconcilers.mounts.held", followed)


@wall("nothing beside a share")
def _nothing_beside(product: Product) -> None:
    """The canary of the host is in the guest, beside where shared directories are mounted."""

    def tree(real: Any, target: Path) -> None:
        real(target)
        canary = Path(os.environ["BOX_HOME"]).parent / "canary"
        (target / "mnt" / "canary").write_bytes(canary.read_bytes())

    product.around("reconcilers.images.builtin.busybox_tree", tree)


@wall("nosuid in the guest")
def _nosuid(product: Product) -> None:
    """Another agent, which mounts shared directories without nosuid and nodev."""
    place = Path(os.environ["BOX_HOME"]).parent / "agent"
    if not place.exists():
        shutil.copytree(build.SOURCES, place / "src")
        source = place / "src" / "mounts.c"
        text, flags = source.read_text(), "MS_NOSUID | MS_NODEV | ("
        assert flags in text
        source.write_text(text.replace(flags, "("))
    product.replace("agent.build.SOURCES", place / "src")
    program = build.build_agent(place)
    product.replace("reconcilers.boot.agent_binary", lambda: program)
