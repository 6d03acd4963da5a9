"""`box data import` and `box data export`: a directory of the caller's into /data, and back.

What the guest wrote is written here, as the caller and with no more rights than the caller has; the
controller only runs the machine that reads the guest's file system.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from controller.cli import output
from controller.cli.client import WORK_SECONDS, call
from controller.cli.place import needed
from reconcilers.guestfiles import transfers
from reconcilers.guestfiles.notes import Notes
from reconcilers.guestfiles.pack import pack
from reconcilers.guestfiles.target import Target
from reconcilers.guestfiles.unpack import unpack
from reconcilers.layout import Layout
from specs.errors import HostError, UsageError
from specs.names import check_name

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def data(chosen: Namespace) -> int:
    layout, name = needed(), check_name(chosen.name)
    folder = Path(chosen.folder)
    with _tidy_when_ended():
        return {"export": _export, "import": _import}[chosen.action](layout, name, folder)


@contextlib.contextmanager
def _tidy_when_ended() -> Iterator[None]:
    """What was begun is removed as after Ctrl-C when the terminal is closed, or a service stops."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    ours = [each for each in _ENDING if signal.getsignal(each) is signal.SIG_DFL]  # nohup: none
    for each in ours:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _export(layout: Layout, name: str, folder: Path) -> int:
    target, notes = Target(folder, (layout.home, layout.boxes)), Notes()
    # Made first: where that cannot be, no machine is started for nothing.
    with transfers.new(layout.transfers) as (transfer, archive), target.building() as root:
        _ask(layout, name, "export", transfer)
        with _writing_to(target.path.parent):
            unpack(root, archive, notes)
    _tell(notes)
    print(f"/data of {name} is in {output.safe(target.path, 4096)}: {_summary(notes)}")
    return 0


def _import(layout: Layout, name: str, folder: Path) -> int:
    notes = Notes()
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(folder), fix="name a directory"
        ) from error
    try:
        with transfers.new(layout.transfers) as (transfer, archive):
            with _writing_to(layout.transfers):
                pack(root, archive, notes)
            _ask(layout, name, "import", transfer)
    finally:
        os.close(root)
    _tell(notes)
    print(f"what {output.safe(folder, 4096)} holds is in /data of {name}: {_summary(notes)}")
    return 0


@contextlib.contextmanager
def _writing_to(place: Path) -> Iterator[None]:
    """Names where there is no room, which an error of a descriptor does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        told = f"nothing was done: {os.strerror(error.errno)}"
        raise HostError(told, where=str(place), fix=f"free some space: df -h {place}") from error


def _ask(layout: Layout, name: str, action: str, transfer: str) -> None:
    body = json.dumps({"action": action, "transfer": transfer}).encode()
    call(layout, "POST", f"/v1/sandboxes/{name}/data", body, WORK_SECONDS)


def _tell(notes: Notes) -> None:
    for path, what in notes.paths:
        output.note(f"{path}: {what}")
    if notes.total > len(notes.paths):
        output.note(f"and {notes.total - len(notes.paths)} more")


def _summary(notes: Notes) -> str:
    counted = [
        output.count(notes.files, "file"),
        output.count(notes.folders, "directory", "directories"),
        output.count(notes.links, "link"),
    ]
    size = notes.data
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 10 * 1024:
            break
        size, unit = size // 1024, larger
    told = f"; {output.count(notes.total, 'remark')} above" if notes.total else ""
    return f"{', '.join(counted)}, {size} {unit}{told}"
