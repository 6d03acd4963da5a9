"""Layers as tests write them: tar files by the standard library, and a tree as a plain mapping."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from typing import Any

from reconcilers.images.layers import Entry, Merge
from reconcilers.images.tarread import entries
from reconcilers.images.tree import Fifo, File, Folder, Symlink, Tree

Item = tuple[str, str] | tuple[str, str, Any]
"""Name, one letter for its kind (as `ls -l` shows it, h for a hard link), and content or target."""

_TYPES = {
    "-": tarfile.REGTYPE,
    "d": tarfile.DIRTYPE,
    "l": tarfile.SYMTYPE,
    "h": tarfile.LNKTYPE,
    "p": tarfile.FIFOTYPE,
    "c": tarfile.CHRTYPE,
    "b": tarfile.BLKTYPE,
}


def layer(*items: Item, **settings: Any) -> bytes:
    """An uncompressed layer; `settings` are attributes of every entry."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, *rest in items:
            info = tarfile.TarInfo(name)
            info.type, info.mode = _TYPES[kind], 0o755 if kind == "d" else 0o644
            for key, value in settings.items():
                setattr(info, key, value)
            content = b""
            if kind == "-":
                content = rest[0] if rest else b""
                info.size = len(content)
            elif rest:
                info.linkname = rest[0]
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def merged(*layers: bytes) -> Merge:
    merge = Merge()
    for number, each in enumerate(layers):
        merge.apply(read(each, number))
    return merge


def read(data: bytes, source: int = 0) -> Iterable[Entry]:
    return entries(io.BytesIO(data), source)


def listed(tree: Tree, *layers: bytes) -> dict[str, str]:
    """Path to what is there: `d`, `l TARGET`, `p`, or the content of a file."""
    found = {}
    for path, node in tree.walk():
        match node:
            case Folder():
                shown = "d"
            case Symlink():
                shown = "l " + node.target.decode()
            case Fifo():
                shown = "p"
            case File():
                where = node.content
                data = layers[where.source] if layers else b""
                shown = data[where.offset : where.offset + where.size].decode()
            case _:
                raise AssertionError(node)
        found[path.decode("utf-8", "surrogateescape")] = shown
    return found


def result(*layers: bytes) -> dict[str, str]:
    """What the layers, lowest first, come to."""
    return listed(merged(*layers).tree, *layers)
