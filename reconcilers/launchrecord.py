"""The launch record: what the controller must know of a VMM it started, to find and trust it again
after a restart.

It lives in the sandbox's runtime directory (0700) because it holds the channel's token. It is
written once before the launch, without a PID, and once after: a VMM whose record has no PID was
never ours to trust and is replaced.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specs.reading import Reading

_LIMIT = 1 << 20
_OURS_TO_BLAME = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)


@dataclass(frozen=True)
class HelperRecord:
    """One helper beside a VMM. `item` is which one of its role; `path`, `directory` (device,
    inode), `owner` (user, group on the host) and `writable` are of the directory it serves, if it
    serves one.
    """

    role: str
    item: int
    pid: int
    start_time: int
    exe: tuple[int, int]
    at_launch: tuple[Reading, ...]
    path: str = ""
    directory: tuple[int, int] = (0, 0)
    owner: tuple[int, int] = (0, 0)
    writable: bool = False

    @property
    def label(self) -> str:
        """How its readings' items begin, so that they are not taken for the VMM's."""
        return f"{self.role} {self.item}: "


@dataclass(frozen=True)
class LaunchRecord:
    """One start of one VMM. `start_time` is field 22 of /proc/PID/stat in clock ticks; `exe` is
    (device, inode).
    """

    key: str
    token: str
    accel: str
    uid: int
    gid: int
    kernel_sha256: str
    kernel_release: str
    initramfs_sha256: str
    image_sha256: str
    host_boot_id: str
    started: str
    argv: tuple[str, ...]
    data_bytes: int
    settings: str = ""  # of its Boxfile, as in launched.py
    image_digest: str = ""  # as in images/, empty in a record of an older version
    image_asked: str = ""  # by its Boxfile, as `launched.image_of`
    image_env: tuple[str, ...] = ()  # NAME=VALUE, for commands that are told nothing else
    pid: int = 0
    start_time: int = 0
    exe: tuple[int, int] = (0, 0)
    guest_boot_id: str = ""
    guest_network: str = ""  # what the guest was told of its network
    at_launch: tuple[Reading, ...] = ()
    helpers: tuple[HelperRecord, ...] = ()

    @property
    def claimed(self) -> bool:
        """Whether the guest agent has been given the token's hash and has answered."""
        return self.guest_boot_id != ""


def write(path: Path, record: LaunchRecord) -> None:
    """Replace the record atomically, mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    with os.fdopen(descriptor, "w") as file:
        json.dump(dataclasses.asdict(record), file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def read(path: Path) -> LaunchRecord | None:
    """The record, or None when it is missing or makes no sense: its VMM is then a stray.

    Raises OSError when we lack what it takes to read it, which says nothing about the VMM.
    """
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(path, flags), "rb") as file:
            return _parse(json.loads(file.read(_LIMIT)))
    except OSError as error:
        if error.errno in _OURS_TO_BLAME:
            raise
        return None
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


def _parse(data: dict[str, Any]) -> LaunchRecord:
    data["argv"] = tuple(map(str, data["argv"]))
    device, inode = data["exe"]
    data["exe"] = (int(device), int(inode))
    data["image_env"] = tuple(map(str, data.get("image_env", ())))
    data["at_launch"] = tuple(Reading(**reading) for reading in data["at_launch"])
    data["helpers"] = tuple(_helper(each) for each in data.get("helpers", ()))
    record = LaunchRecord(**data)
    for field in ("uid", "gid", "pid", "start_time", "data_bytes"):
        if not isinstance(getattr(record, field), int):
            raise TypeError(field)
    for field in ("settings", "image_digest", "image_asked"):
        if not isinstance(getattr(record, field), str):
            raise TypeError(field)
    bytes.fromhex(record.token)
    return record


def _helper(data: dict[str, Any]) -> HelperRecord:
    for field in ("exe", "directory", "owner"):
        first, second = data[field]
        data[field] = (int(first), int(second))
    data["at_launch"] = tuple(Reading(**reading) for reading in data["at_launch"])
    helper = HelperRecord(**data)
    for field in ("item", "pid", "start_time"):
        if not isinstance(getattr(helper, field), int):
            raise TypeError(field)
    return helper
