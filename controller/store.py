"""What a controller remembers between passes and starts: state files, reports, the watched folder.

State (`state/NAME.toml`) is what decisions need; it is never deleted because it cannot be read.
Reports (`observed/NAME/`) are for people: anybody may delete or damage them, readers then see
nothing and writers make them anew. This module decides nothing about sandboxes and holds no lock: a
home has one controller.
"""

from __future__ import annotations

import errno
import hashlib
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from controller import files
from controller.eventlog import EventLog
from controller.home import ensure_home, read_home
from controller.records import (
    FolderIdentity,
    Garbled,
    Record,
    folder_from_dict,
    folder_to_dict,
    record_from_dict,
    record_to_dict,
)
from reconcilers.layout import Layout
from specs.drift import Event
from specs.errors import HostError
from specs.names import check_name, is_name
from specs.report import Report

__all__ = ["FolderIdentity", "Garbled", "Record", "Store", "ensure_home", "read_home"]

STATE_FILE_MAX = 1024 * 1024  # bytes; a Boxfile is at most 256 KiB
REPORT_FILE_MAX = 1024 * 1024
SUFFIX = ".toml"
PASSING_TROUBLE = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# What we write about a sandbox; console.log.1 is the older half of its console.
OBSERVED_FILES = ("observed.toml", "events.jsonl", "console.log", "console.log.1")


class Store:
    """Reads and writes the records below one home. Writes only when bytes change.

    Every method that writes raises HostError when the disk refuses, and has then changed nothing.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._events = EventLog()
        # What we last wrote or compared, by path: digest of the value and the file it became. A
        # file that somebody deleted or changed has another key, and is written again.
        self._written: dict[Path, tuple[bytes, files.StatKey]] = {}

    # -- state ------------------------------------------------------------------------------------

    def load(self, name: str) -> Record | Garbled | None:
        """The record of `name`, None when there is none; raises BadName, HostError for trouble
        of the host that says nothing about the file.
        """
        path = self._state_path(name)
        key = files.path_key(path)
        try:
            record = record_from_dict(read_toml(path, STATE_FILE_MAX), name)
            if key is not None:
                self._written[path] = (b"", key)
            return record
        except FileNotFoundError:
            return None
        except HostError as error:
            # A record that could not be read now is not a garbled one: it must not be set aside.
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in PASSING_TROUBLE:
                raise
            return Garbled(path, one_line(error))
        except ValueError as error:
            return Garbled(path, one_line(error))

    def load_all(self) -> dict[str, Record | Garbled]:
        """Every record by name, unreadable ones included; HostError when state/ is unreadable."""
        found: dict[str, Record | Garbled] = {}
        for name in self.names():
            record = self.load(name)
            if record is not None:
                found[name] = record
        return found

    def names(self) -> list[str]:
        """Sorted names that have a state file, readable or not."""
        try:
            entries = sorted(path.name for path in self._layout.state.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise files.read_error(self._layout.state, error) from error
        stems = [e.removesuffix(SUFFIX) for e in entries if e.endswith(SUFFIX)]
        return [stem for stem in stems if is_name(stem)]

    def save(self, record: Record) -> bool:
        """Write the record if it differs from the file; True when something was written."""
        path = self._state_path(record.name)
        data = tomli_w.dumps(record_to_dict(record)).encode()
        if self._is_current(path, data):
            return False
        if isinstance(garbled := self.load(record.name), Garbled):
            self.set_aside(garbled)
        return self._write_changed(path, data)

    def remove(self, name: str) -> None:
        """Forget `name`: its state file and everything reported about it."""
        path = self._state_path(name)
        self._written.pop(path, None)
        try:
            path.unlink(missing_ok=True)
            files.sync_folder(path.parent)
        except FileNotFoundError:
            pass  # state/ itself is gone, so the record is too
        except OSError as error:
            raise files.write_error(path, error) from error
        self.remove_observed(name)

    def intact(self, name: str) -> bool:
        """Whether record and report of `name` are still the files we read or wrote last.

        Two stat calls; what was never written or read counts as intact.
        """
        for path in (self._state_path(name), self._observed_path(name) / "observed.toml"):
            known = self._written.get(path)
            if known is not None and known[1] != files.path_key(path):
                return False
        return True

    def set_aside(self, garbled: Garbled) -> Path:
        """Rename an unreadable state file to NAME.toml.garbled-TIME, for a human; the new path."""
        self._written.pop(garbled.path, None)
        return files.move_aside(garbled.path)

    # -- the watched folder ------------------------------------------------------------------------

    def load_folder(self) -> FolderIdentity | Garbled | None:
        """The watched folder recorded last; None when none was recorded."""
        path = self._folder_path()
        try:
            return folder_from_dict(read_toml(path, STATE_FILE_MAX))
        except FileNotFoundError:
            return None
        except (HostError, ValueError) as error:
            return Garbled(path, one_line(error))

    def save_folder(self, folder: FolderIdentity) -> bool:
        """Record which folder the inventory belongs to; True when something was written."""
        path = self._folder_path()
        if isinstance(garbled := self.load_folder(), Garbled):
            self.set_aside(garbled)
        return self._write_changed(path, tomli_w.dumps(folder_to_dict(folder)).encode())

    # -- reports -----------------------------------------------------------------------------------

    def write_report(self, name: str, report: Report) -> bool:
        """Write observed/NAME/observed.toml if it differs; True when something was written."""
        path = self._observed_path(name) / "observed.toml"
        # The JSON form is made outside Python's loop, the TOML form is not: an unchanged report
        # costs some microseconds this way instead of a millisecond.
        digest = hashlib.sha256(report.model_dump_json().encode()).digest()
        known = self._written.get(path)
        if known is not None and known[0] == digest and known[1] == files.path_key(path):
            return False
        data = tomli_w.dumps(report.to_toml_dict()).encode()
        self._ensure_observed(path.parent)
        files.clear_place(path)
        return self._write_changed(path, data, digest=digest)

    def read_report(self, name: str) -> Report | None:
        """The last report of `name`, or None when there is none that can be read."""
        try:
            return Report.from_dict(
                read_toml(self._observed_path(name) / "observed.toml", REPORT_FILE_MAX)
            )
        except (FileNotFoundError, HostError, ValueError):
            return None

    def append_event(self, name: str, event: Event) -> None:
        """Add one line to observed/NAME/events.jsonl, dropping the oldest beyond its bounds."""
        folder = self._observed_path(name)
        self._ensure_observed(folder)
        path = folder / "events.jsonl"
        files.clear_place(path)
        self._events.append(path, event)

    def read_events(self, name: str) -> list[Event]:
        """The events of `name`, oldest first; lines that cannot be understood are left out."""
        return self._events.read(self._observed_path(name) / "events.jsonl")

    def remove_observed(self, name: str) -> None:
        """Remove what we reported about `name`; files put there by others stay."""
        folder = self._observed_path(name)
        self._events.forget(folder / "events.jsonl")
        self._written.pop(folder / "observed.toml", None)
        for filename in OBSERVED_FILES:
            path = folder / filename
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue
        files.remove_leftovers(folder)
        try:
            folder.rmdir()  # fails, and stays, while it holds anything of others
        except OSError:
            return

    def remove_leftovers(self) -> int:
        """Remove temporary files of a killed controller; call once, holding the home's lock."""
        layout = self._layout
        folders = [layout.home, layout.state, layout.observed]
        if layout.observed.is_dir():
            folders += [path for path in layout.observed.iterdir() if path.is_dir()]
        return sum(files.remove_leftovers(folder) for folder in folders)

    # -- inside ------------------------------------------------------------------------------------

    def _state_path(self, name: str) -> Path:
        return self._layout.state / f"{check_name(name)}{SUFFIX}"

    def _folder_path(self) -> Path:
        return self._layout.state / ".folder.toml"  # no sandbox has a name with a dot

    def _observed_path(self, name: str) -> Path:
        return self._layout.observed / check_name(name)

    def _ensure_observed(self, folder: Path) -> None:
        # A user may keep observed/ elsewhere and leave a symlink; below it everything is ours.
        if not self._layout.observed.is_dir():
            files.ensure_folder(self._layout.observed)
        files.ensure_folder(folder)

    def _is_current(self, path: Path, data: bytes) -> bool:
        known = self._written.get(path)
        return known is not None and known == (digest_of(data), files.path_key(path))

    def _write_changed(self, path: Path, data: bytes, *, digest: bytes | None = None) -> bool:
        """Write unless the file holds exactly `data`; `digest` stands for the value in memory."""
        changed = not files.holds(path, data)
        if changed:
            if not path.parent.is_dir():
                files.ensure_folder(path.parent)
            files.write_atomic(path, data)
        key = files.path_key(path)
        if key is not None:
            self._written[path] = (digest or digest_of(data), key)
        return changed


def digest_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def read_toml(path: Path, limit: int) -> dict[str, Any]:
    """Raises FileNotFoundError, HostError, or ValueError for what is no TOML in UTF-8."""
    data = files.read_bounded(path, limit)
    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
