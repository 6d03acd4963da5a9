"""A root file system in memory: names, metadata, and where the bytes of each file are.

Nothing here touches a file system, so a name can lead nowhere but to another place of this tree. A
name is bound to a node together with the layer that bound it, which is what whiteouts go by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specs.errors import Terminal

LINKS_MAX = 40  # path_resolution(7)
# Names looked up for one image, so that links that lead through each other end. An image of half a
# million files, ten folders deep, takes five million.
STEPS_MAX = 20_000_000
FOLDER_MODE = 0o755

Xattrs = tuple[tuple[bytes, bytes], ...]


class BadImage(Terminal):
    """What an image holds cannot be made a root file system: another try would find the same."""


class Content(NamedTuple):
    """`size` bytes at `offset` of the source number `source`.

    `pieces` of a sparse file, in order: (where in the file, how many bytes, where in the source) of
    what is stored; `size` is then what the file looks like. None: all of it is, from `offset` on.
    """

    source: int
    offset: int
    size: int
    pieces: tuple[tuple[int, int, int], ...] | None = None


NOTHING = Content(-1, 0, 0)
"""Of an empty file, and of what is no file."""


@dataclass(slots=True, eq=False)
class Node:
    """`mode` holds the permission bits alone, `mtime` is in seconds since 1970."""

    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    xattrs: Xattrs = ()


@dataclass(slots=True, eq=False)
class Folder(Node):
    """`children`: each name's node and the layer that bound it."""

    children: dict[bytes, tuple[Node, int]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class File(Node):
    """One that several names are bound to has hard links."""

    content: Content = NOTHING


@dataclass(slots=True, eq=False)
class Symlink(Node):
    target: bytes = b""


@dataclass(slots=True, eq=False)
class Fifo(Node):
    pass


class Tree:
    """The root folder, and how names are looked up in it."""

    def __init__(self) -> None:
        self.root = Folder(FOLDER_MODE)
        self._steps = 0

    def spend(self, steps: int) -> None:
        """Count work that an image causes. Raises BadImage above STEPS_MAX."""
        self._steps += steps
        if self._steps > STEPS_MAX:
            raise BadImage(f"looking up its names takes more than {STEPS_MAX} steps")

    def find(self, parts: Sequence[bytes]) -> Node | None:
        """What a path leads to; its last part is not followed when it is a link."""
        if not parts:
            return self.root
        folder = self.folder(parts[:-1])
        bound = folder.children.get(parts[-1]) if folder is not None else None
        return bound[0] if bound is not None else None

    def folder(self, parts: Sequence[bytes]) -> Folder | None:
        """The folder a path leads to, through links; None when there is nothing. Raises BadImage
        when there is something else.
        """
        return self._walk(parts, None)

    def made_folder(self, parts: Sequence[bytes], layer: int) -> Folder:
        """The same, made where it is missing; each folder on the way counts as `layer`'s, too."""
        found = self._walk(parts, layer)
        assert found is not None
        return found

    def _walk(self, parts: Sequence[bytes], layer: int | None) -> Folder | None:
        way, pending, links = [self.root], list(reversed(parts)), 0
        while pending:
            self.spend(1)
            name, here = pending.pop(), way[-1]
            if name in (b"", b"."):
                continue
            if name == b"..":  # of a link: above the root is the root
                del way[max(1, len(way) - 1) :]
                continue
            node, stamp = here.children.get(name, (None, -1))
            if isinstance(node, Symlink):
                links += 1
                if links > LINKS_MAX:
                    raise BadImage("its path leads through more than 40 links")
                if node.target.startswith(b"/"):
                    way = [self.root]
                pending += reversed(node.target.split(b"/"))
                continue
            if node is None:
                if layer is None:
                    return None
                node = Folder(FOLDER_MODE)
            if not isinstance(node, Folder):
                raise BadImage("its path leads through a file")
            if layer is not None and stamp != layer:
                here.children[name] = (node, layer)
            way.append(node)
        return way[-1]

    def walk(self) -> Iterator[tuple[bytes, Node]]:
        """Every path below the root, without a leading slash, folders before what they hold."""
        pending: list[tuple[bytes, Folder]] = [(b"", self.root)]
        while pending:
            path, folder = pending.pop()
            below: list[tuple[bytes, Folder]] = []
            for name in sorted(folder.children):
                node = folder.children[name][0]
                full = path + name
                yield full, node
                if isinstance(node, Folder):
                    below.append((full + b"/", node))
            pending += reversed(below)
