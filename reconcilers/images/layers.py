"""The layers of an OCI image laid over each other, by their headers alone.

Follows the image specification's layer.md: whiteouts and opaque markers hide what lower layers
have, wherever they stand in the tar, and never what their own layer brings. Pure: the tree is in
memory, so there is no file system that an entry could escape to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from reconcilers.images.tree import (
    NOTHING,
    BadImage,
    Content,
    Fifo,
    File,
    Folder,
    Node,
    Symlink,
    Tree,
    Xattrs,
)
from specs.text import visible

# Entries of all layers together. Debian with Python has 15,000, large development images 300,000.
ENTRIES_MAX = 500_000
NAME_MAX, PATH_MAX = 255, 4095  # limits.h, without the final NUL
# Of all entries together: the bytes of names, of what links lead to and of extended attributes, and
# the pieces of sparse files. All of them are in memory. Half a million plain names take 40 MB.
TEXT_MAX, PIECES_MAX = 256 << 20, 2_000_000
_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_AUFS = b".wh..wh."  # what aufs kept for itself; old images have some, and they mean nothing here


class Kind(Enum):
    """What a tar entry is."""

    file = "file"
    folder = "folder"
    symlink = "symlink"
    hardlink = "hardlink"
    fifo = "fifo"
    device = "device"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a layer; `name` and `link` are as written there."""

    name: bytes
    kind: Kind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    link: bytes = b""
    xattrs: Xattrs = ()
    content: Content = NOTHING


class Merge:
    """Layers in order, lowest first. `devices` counts what was left out: a guest has its own."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.devices = 0
        self._layers = 0
        self._entries = self._text = self._pieces = 0

    def apply(self, entries: Iterable[Entry], *, whiteouts: bool = True) -> None:
        """Lay one more layer on top. Raises BadImage that names the layer and the entry.

        Without `whiteouts` the names that hide something in a layer are names like any other, as in
        a root that is no layer.
        """
        self._layers += 1
        where = f"layer {self._layers}"
        try:
            for entry in entries:
                where = f'layer {self._layers}, entry "{shown(entry.name)}"'
                self._count(entry)
                self._apply(entry, whiteouts)
                where = f'layer {self._layers}, after entry "{shown(entry.name)}"'
        except BadImage as error:
            raise BadImage(f"{where}: {error.message}") from None

    def _count(self, entry: Entry) -> None:
        self._entries += 1
        if self._entries > ENTRIES_MAX:
            raise BadImage(f"the image has more than {ENTRIES_MAX} entries")
        attributes = sum(len(name) + len(value) for name, value in entry.xattrs)
        self._text += len(entry.name) + len(entry.link) + attributes
        if self._text > TEXT_MAX:
            raise BadImage(f"its names and attributes take more than {TEXT_MAX >> 20} MiB")
        self._pieces += len(entry.content.pieces or ())
        if self._pieces > PIECES_MAX:
            raise BadImage(f"its files have more than {PIECES_MAX} holes")

    def _apply(self, entry: Entry, whiteouts: bool) -> None:
        parts = split(entry.name)
        if not parts:
            if entry.kind is not Kind.folder:
                raise BadImage("it stands for the root and is no folder")
            _take(self.tree.root, entry)
            return
        *parents, last = parts
        if not whiteouts:
            self._put(self.tree.made_folder(parents, self._layers), last, entry)
            return
        for each in parents:
            if each.startswith(_AUFS):
                return
            if each.startswith(_WHITEOUT):
                raise BadImage("it lies below a whiteout")
        if last.startswith(_WHITEOUT):
            self._hide(parents, last)
        else:
            self._put(self.tree.made_folder(parents, self._layers), last, entry)

    # -- whiteouts

    def _hide(self, parents: list[bytes], marker: bytes) -> None:
        if marker == _OPAQUE:
            # It stands in a folder, so its layer has that folder.
            self._prune(self.tree.made_folder(parents, self._layers))
            return
        if marker.startswith(_AUFS):
            return
        name = marker.removeprefix(_WHITEOUT)
        if name in (b"", b".", b".."):
            raise BadImage("it is a whiteout of no name")
        folder = self.tree.folder(parents)
        bound = folder.children.get(name) if folder is not None else None
        if folder is None or bound is None:
            return
        node, layer = bound
        if layer < self._layers:
            del folder.children[name]
        elif isinstance(node, Folder):
            self._prune(node)

    def _prune(self, folder: Folder) -> None:
        """Take out what lower layers brought, at every depth; what this one brought stays."""
        pending = [folder]
        while pending:
            here = pending.pop()
            self.tree.spend(len(here.children))
            for name, (node, layer) in list(here.children.items()):
                if layer < self._layers:
                    del here.children[name]
                elif isinstance(node, Folder):
                    pending.append(node)

    # -- everything else

    def _put(self, folder: Folder, name: bytes, entry: Entry) -> None:
        if entry.kind is Kind.device:
            self.devices += 1
            folder.children.pop(name, None)
            return
        folder.children[name] = (self._node(folder, name, entry), self._layers)

    def _node(self, folder: Folder, name: bytes, entry: Entry) -> Node:
        match entry.kind:
            case Kind.folder:
                there = folder.children.get(name, (None, 0))[0]
                node = there if isinstance(there, Folder) else Folder(0)
                _take(node, entry)
                return node
            case Kind.hardlink:
                target = self.tree.find(split(entry.link))
                if target is None:
                    raise BadImage(f'it links to "{shown(entry.link)}", which is not there')
                if isinstance(target, Folder):
                    raise BadImage(f'it links to "{shown(entry.link)}", which is a folder')
                return target
            case Kind.symlink:
                if not entry.link or b"\0" in entry.link or len(entry.link) > PATH_MAX:
                    raise BadImage("it is a link to a path that cannot be one")
                made: Node = Symlink(0, target=entry.link)
            case Kind.fifo:
                made = Fifo(0)
            case _:
                made = File(0, content=entry.content)
        _take(made, entry)
        return made


def _take(node: Node, entry: Entry) -> None:
    node.mode, node.uid, node.gid = entry.mode, entry.uid, entry.gid
    node.mtime, node.xattrs = entry.mtime, entry.xattrs


def split(name: bytes) -> list[bytes]:
    """The parts of an entry's path. Raises BadImage for one that leads out of the root."""
    if b"\0" in name:
        raise BadImage("its name holds a NUL")
    if name.startswith(b"/") and name.strip(b"/"):
        raise BadImage("its path is absolute")
    if len(name) > PATH_MAX:
        raise BadImage(f"its path is longer than {PATH_MAX} bytes")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    for part in parts:
        if part == b"..":
            raise BadImage("its path holds ..")
        if len(part) > NAME_MAX:
            raise BadImage(f"a name in its path is longer than {NAME_MAX} bytes")
    return parts


def shown(name: bytes) -> str:
    """Bytes of an image, for a message."""
    return visible(name.decode("utf-8", "backslashreplace"), 200)
