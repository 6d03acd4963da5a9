"""A base, a fork and a parent as directories of the host, and what the agent says of them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from reconcilers.guestfiles.changes import Entry, LeftOut, listed
from tests.unit.agent.guest import Guest


@dataclass
class Told:
    """What MERGE says: how many changes there are to take, and the conflicts."""

    taken: int
    conflicts: dict[str, str]

    @classmethod
    def read(cls, raw: bytes) -> Told:
        head, *rest = raw.split(b"\0")
        assert rest[-1] == b"" and head[:1] == b"="
        taken, count = head[1:].split()
        conflicts = {os.fsdecode(each[3:]): each[:2].decode() for each in rest[:-1]}
        assert all(each[2:3] == b"/" for each in rest[:-1]) and int(count) == len(rest) - 1
        return cls(int(taken), conflicts)


def changes(guest: Guest, fork: Path) -> list[Entry | LeftOut]:
    """What differs in `fork` from `base`."""
    parent = guest.folder / "parent"
    guest.data.rename(parent)
    fork.rename(guest.data)
    guest.run("changes", "1")
    guest.data.rename(fork)
    parent.rename(guest.data)
    with guest.transfer.open("rb") as file:
        return list(listed(file.fileno()))


def prepared(guest: Guest, tmp_path: Path, *names: str) -> tuple[Path, Path]:
    base, fork = tmp_path / "base", tmp_path / "fork"
    for tree in (base, fork, guest.data):
        tree.mkdir(exist_ok=True)
        for name in names:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text("old")
    return base, fork


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
