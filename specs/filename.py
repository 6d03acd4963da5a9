"""Which file names declare a sandbox, which are an editor's litter, and the name in between.

Imported on every scan of the folder; it must not look at the files.
"""

from __future__ import annotations

_SUFFIXES = (".box.yaml", ".box.yml", ".box.toml", ".yaml", ".yml")
_LITTER_SUFFIXES = (
    "~",
    ".bak",
    ".swp",
    ".swo",
    ".swx",
    ".tmp",
    ".temp",
    ".orig",
    ".rej",
    ".part",
    ".old",
    ".save",
    ".crswap",
    ".dpkg-new",
    ".dpkg-old",
    ".dpkg-dist",
    ".rpmnew",
    ".rpmsave",
    "___jb_tmp___",
    "___jb_old___",
)
_PLAIN_NAME = "Boxfile"


def name_from_filename(path: str) -> str | None:
    """The name that a file in the watched folder stands for; None when it is no Boxfile.

    `agent.box.yaml`, `agent.box.yml`, `agent.box.toml`, `agent.yaml`, `agent.yml` and
    `agent/Boxfile` stand for `agent`. The name is not checked: a bad one is a mistake to report,
    not a file to ignore.
    """
    folder, _, filename = path.rpartition("/")
    if is_ignored(filename):
        return None
    if filename == _PLAIN_NAME:
        return folder.rpartition("/")[2] or None
    for suffix in _SUFFIXES:
        if filename.endswith(suffix):
            return filename.removesuffix(suffix) or None
    return None


def is_ignored(filename: str) -> bool:
    """Whether a name (without folders) is hidden, a backup or a temporary file: never opened."""
    if not filename or filename.startswith(".") or filename.endswith(_LITTER_SUFFIXES):
        return True
    return filename.startswith("#") and filename.endswith("#")
