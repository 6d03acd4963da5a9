"""Writes a tree as one tar stream, the only thing that the squashfs tool ever reads.

POSIX.1-2001 (pax): a plain ustar header, preceded by an extended one for what does not fit into it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO

from reconcilers.images.tree import BadImage, Fifo, File, Folder, Node, Symlink, Tree

BLOCK = 512
# Of all files together, holes included. squashfs keeps four bytes for each 128 KiB.
BYTES_MAX = 64 << 30
# Of a path, and of all together: links make it longer than any that an entry had.
PATH_MAX, PATHS_MAX = 4095, 256 << 20
# Different owners and groups that a squashfs can hold, of which each is kept once.
IDS_MAX = 65_536
_CHUNK = 1 << 20
_ZEROS = memoryview(bytes(_CHUNK))
_PLAIN_NAME = 100
_OCTAL_7, _OCTAL_11 = 0o7777777, 0o77777777777


def write_tree(
    tree: Tree, source: Callable[[int], int], out: IO[bytes], check: Callable[[int], None]
) -> int:
    """Write all below the root of `tree` to `out`; the number of inodes, the root's included.
    Raises BadImage, OSError.

    `source` gives the descriptor of a source, which stays open until it is asked for another one.
    `check` is called now and then with how many bytes of files are written, and may raise to give
    up.
    """
    writer = _Writer(source, out, check)
    for path, node in tree.walk():
        writer.add(path, node)
    out.write(bytes(2 * BLOCK))
    out.flush()
    return writer.inodes


def file_bytes(tree: Tree) -> int:
    """Of all its files together, each counted once whatever names it has."""
    files = {id(node): node.content.size for _, node in tree.walk() if isinstance(node, File)}
    return sum(files.values())


def require_ids(tree: Tree) -> None:
    """Raises BadImage when there are more owners and groups than the image can hold, which the tool
    would find out at last.
    """
    ids = {tree.root.uid, tree.root.gid}
    for _, node in tree.walk():
        ids.update((node.uid, node.gid))
        if len(ids) > IDS_MAX:
            raise BadImage(f"its files have more than {IDS_MAX} different owners and groups")


class _Writer:
    def __init__(
        self, source: Callable[[int], int], out: IO[bytes], check: Callable[[int], None]
    ) -> None:
        self._source = source
        self._out = out
        self._check = check
        self._bytes = self._written = self._paths = 0
        self._first: dict[int, bytes] = {}  # the path under which each file was written
        self.inodes = 1

    def add(self, path: bytes, node: Node) -> None:
        self._check(self._written)
        self._paths += len(path)
        if len(path) > PATH_MAX or self._paths > PATHS_MAX:
            raise BadImage(
                f"a path is longer than {PATH_MAX} bytes, or all are {PATHS_MAX >> 20} MiB"
            )
        if not isinstance(node, Folder):
            first = self._first.setdefault(id(node), path)
            if first != path:
                self._out.write(header(path, node, b"1", link=first))
                return
        self.inodes += 1
        match node:
            case Folder():
                self._out.write(header(path.rstrip(b"/") + b"/", node, b"5"))
            case Symlink():
                self._out.write(header(path, node, b"2", link=node.target))
            case Fifo():
                self._out.write(header(path, node, b"6"))
            case File():
                self._file(path, node)

    def _file(self, path: bytes, node: File) -> None:
        content = node.content
        self._bytes += content.size
        if self._bytes > BYTES_MAX:
            raise BadImage(f"its files take more than {BYTES_MAX >> 30} GiB")
        self._out.write(header(path, node, b"0", size=content.size))
        # Holes are written out: sqfstar 4.5 takes only maps of whole blocks, and makes holes again.
        whole = ((0, content.size, content.offset),)
        end = 0
        for start, length, at in content.pieces if content.pieces is not None else whole:
            self._zeros(start - end)
            self._copy(content.source, at, length)
            end = start + length
        self._zeros(content.size - end + -content.size % BLOCK)

    def _zeros(self, size: int) -> None:
        while size > 0:
            self._check(self._written)
            self._out.write(_ZEROS[:size])
            self._written += min(size, len(_ZEROS))
            size -= len(_ZEROS)

    def _copy(self, source: int, start: int, size: int) -> None:
        if size == 0:
            return
        self._out.flush()
        to, end, of = self._out.fileno(), start + size, self._source(source)
        while start < end:
            self._check(self._written)
            sent = os.sendfile(to, of, start, min(_CHUNK, end - start))
            if sent == 0:
                raise BadImage("what it is made from became shorter while it was read")
            start += sent
            self._written += sent


def header(
    path: bytes,
    node: Node,
    kind: bytes,
    *,
    link: bytes = b"",
    size: int = 0,
) -> bytes:
    """The header blocks of one entry."""
    extra = [(b"SCHILY.xattr." + name, value) for name, value in node.xattrs if kind != b"1"]
    numbers = (
        (b"uid", node.uid, _OCTAL_7),
        (b"gid", node.gid, _OCTAL_7),
        (b"mtime", node.mtime, _OCTAL_11),
        (b"size", size, _OCTAL_11),
    )
    extra += [(key, b"%d" % value) for key, value, most in numbers if value > most]
    extra += [
        (key, text)
        for key, text in ((b"path", path), (b"linkpath", link))
        if len(text) > _PLAIN_NAME
    ]
    plain = _block(path, node, kind, link, size)
    if not extra:
        return plain
    body = b"".join(_record(key, value) for key, value in extra)
    before = _block(b"pax", Node(0o644), b"x", b"", len(body))
    return before + body + bytes(-len(body) % BLOCK) + plain


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH KEY=VALUE` and a line feed; the length counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(b"%d" % rest)
    length = rest + len(b"%d" % length)
    return b"%d %s=%s\n" % (length, key, value)


def _block(path: bytes, node: Node, kind: bytes, link: bytes, size: int) -> bytes:
    fields = (
        path[:_PLAIN_NAME].ljust(_PLAIN_NAME, b"\0"),
        b"%07o\0" % node.mode,
        b"%07o\0" % (node.uid if node.uid <= _OCTAL_7 else 0),
        b"%07o\0" % (node.gid if node.gid <= _OCTAL_7 else 0),
        b"%011o\0" % (size if size <= _OCTAL_11 else 0),
        b"%011o\0" % (node.mtime if node.mtime <= _OCTAL_11 else 0),
        b" " * 8,
        kind,
        link[:_PLAIN_NAME].ljust(_PLAIN_NAME, b"\0"),
        b"ustar\x0000",
    )
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
