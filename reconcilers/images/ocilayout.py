"""An OCI archive as the folder that it is a tar file of, written without trusting a name in it.

skopeo would unpack such an archive itself, and follow the links in it: a link and then a file
through it is a file anywhere on this host. So only what a layout consists of is taken, and each of
its files gets a name of our own making.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import BinaryIO

from reconcilers.guestfiles.copying import copy
from reconcilers.images.layers import Entry, Kind, shown
from reconcilers.images.localfile import LocalFile, uncompressed
from reconcilers.images.tarread import entries
from reconcilers.images.tree import BadImage
from reconcilers.process import GivenUp

# image-layout.md of the OCI image specification; SHA-256 is the one digest that box takes. The rest
# of an archive (docker save has more) means nothing to whoever reads a layout.
_NAMES = re.compile(rb"oci-layout|index\.json|blobs/sha256/[0-9a-f]{64}")
_BLOBS = "blobs/sha256"
# index.json is read whole by whoever looks an image up in it, and an image has few lines there.
DOCUMENT_MAX = 4 << 20
# Each is an inode of this host, which an empty one of 512 bytes costs, too; an image has some 130.
FILES_MAX = 20_000
_PIECE = 64 << 20


def unpack(file: LocalFile, folder: Path, stop: threading.Event) -> None:
    """Make `folder` the layout in the archive `file`. Raises BadImage, OSError, GivenUp.

    Bytes are shared where the file system can; those of a compressed archive lie beside it for a
    while.
    """
    (folder / _BLOBS).mkdir(parents=True)
    plain = folder.with_name(f"{folder.name}.tar")
    taken = 0
    with uncompressed(file, plain, stop) as archive:
        for entry in entries(archive, 0):
            if stop.is_set():
                raise GivenUp("the image is not wanted any more")
            name = entry.name.removeprefix(b"./")
            if _NAMES.fullmatch(name):
                taken += 1
                if taken > FILES_MAX:
                    raise BadImage(f"the archive has more than {FILES_MAX} blobs")
                _take(archive, entry, folder / name.decode(), stop)
    plain.unlink(missing_ok=True)
    file.unchanged()


def _take(archive: BinaryIO, entry: Entry, target: Path, stop: threading.Event) -> None:
    content = entry.content
    if entry.kind is not Kind.file or content.pieces is not None:
        raise BadImage(f'"{shown(entry.name)}" in the archive is no plain file')
    if target.parent.name != "sha256" and content.size > DOCUMENT_MAX:
        raise BadImage(f'"{shown(entry.name)}" is larger than {DOCUMENT_MAX} bytes')
    with open(target, "wb") as out:  # a later one of the same name counts, as in every tar file
        done = 0
        while done < content.size:
            if stop.is_set():
                raise GivenUp("the image is not wanted any more")
            size = min(_PIECE, content.size - done)
            have = copy(archive.fileno(), content.offset + done, out.fileno(), done, size)
            if not have:
                raise BadImage("the archive became shorter while it was read")
            done += have
    os.chmod(target, 0o600)
