"""What a Boxfile may write as the two paths of a mount, judged as text.

Where a host path leads, and whether that may be shared, is seen on the host when it is opened. It
must not touch a file system.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from posixpath import normpath

from specs.errors import NotAllowed
from specs.text import visible

MOUNTS_MAX = 20
"""QEMU's microvm has 24 virtio-mmio slots; the console, two disks and a network card take four."""

# /data is the disk that persists, the others are made by the guest's agent
_TAKEN = ("/data", "/proc", "/sys", "/dev")


def check_host_path(path: str) -> str:
    """`path` itself: absolute, or `~` or `~/...` for the home of the user the controller runs as.

    Raises NotAllowed with what is wrong.
    """
    if path == "~" or path.startswith("~/"):
        return path
    if path.startswith("~"):
        message = "only ~ and ~/ are expanded, for the user the controller runs as"
        raise NotAllowed(message, "write the home directory out")
    if not path.startswith("/"):
        message = "must be an absolute path, or begin with ~/"
        raise NotAllowed(message, "write the whole path: the controller has a folder of its own")
    if normpath(path) in ("/", "//"):
        raise NotAllowed("the whole host is never shared", "share a folder below /")
    return path


def check_guest_path(path: str) -> str:
    """`path` itself: absolute, in its shortest form, and nothing the guest needs for itself.

    Raises NotAllowed with what is wrong.
    """
    if not path.startswith("/"):
        raise NotAllowed("must be an absolute path", f"write {visible('/' + path)}")
    if ".." in path.split("/"):
        raise NotAllowed("must not contain ..", f"write {visible(normpath(path))}")
    plain = "/" + normpath(path).lstrip("/")
    if plain == "/":
        raise NotAllowed("is the guest's root", "choose a folder, such as /src")
    if path != plain:
        raise NotAllowed(f"is not in its shortest form, {plain}", f"write {plain}")
    for taken in _TAKEN:
        if _is_or_below(plain, taken):
            raise NotAllowed(f"{taken} is the guest's own", "choose another folder, such as /src")
    return path


def clashes(guests: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(index, what is wrong) of each guest path that would hide, or lie in, an earlier mount's."""
    for index, path in enumerate(guests):
        for earlier in guests[:index]:
            if path == earlier:
                yield index, f"{path} is the guest path of another mount"
                break
            if _is_or_below(path, earlier) or _is_or_below(earlier, path):
                yield index, f"{path} and {earlier}: one mount cannot lie in another"
                break


def _is_or_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
