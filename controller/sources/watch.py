"""Hints that something in the watched folder may have changed.

A hint carries nothing: whoever gets one scans the folder. Losing a hint costs time until the next
timed scan, never correctness, so this module reports no errors and keeps no state of files.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.api import BaseObserver, ObservedWatch
from watchdog.observers.inotify import InotifyEmitter

# Not "opened", not "closed without writing", not "directory modified": our own scans cause these.
EVENTS: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileModifiedEvent,
    FileClosedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
]
# inotify(7): the kernel drops events beyond max_queued_events (16,384 by default). The last change
# of a storm may be among them, so a storm is followed by one more hint when it is over.
STORM_EVENTS = 1000
STORM_SECONDS = 1.0
# The library watches a new folder twice, from its own event and from its parent's walk, and says so
# with all it knows of every watch: kilobytes of the controller's log for each folder of a feeder.
warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)


class FolderWatch:
    """Calls `on_hint`, from another thread, after changes below `folder` and of `folder` itself.

    `folder` is the resolved folder; it may be missing, and may be replaced at any time.
    """

    def __init__(self, folder: Path, on_hint: Callable[[], None]) -> None:
        self._folder = folder
        self._on_hint = on_hint
        self._observer: BaseObserver | None = None
        self._lock = threading.Lock()
        self._hinting = threading.Lock()  # not the other: the observer holds its own meanwhile
        self._watches: dict[Path, tuple[tuple[int, int], ObservedWatch]] = {}
        self._storm = StormEnd(self._hint)
        # Watched folders that were deleted: their inode number may be given to the next one.
        self._gone: set[Path] = set()

    def start(self) -> None:
        observer = BaseObserver(Emitter)
        observer.start()
        with self._lock:
            self._observer = observer
        self.refresh()

    def stop(self) -> None:
        """Stop the threads; no hint comes after this returns."""
        with self._lock, self._hinting:
            observer, self._observer = self._observer, None
            self._watches.clear()
        self._storm.stop()
        if observer is not None:
            observer.stop()
            observer.join()

    def refresh(self) -> bool:
        """Watch what now stands at the folder's path and its parent's; True when that changed.

        Cheap (two stat calls); to be called with every scan, because a replaced parent gives no
        hint.
        """
        with self._lock:
            if self._observer is None:
                return False
            # Both always: `or` would skip the second.
            changed = [
                self._watch(self._folder, Inside(self._event, self._deleted), recursive=True),
                self._watch(
                    self._folder.parent,
                    Beside(self._folder, self._replaced, self._deleted),
                    recursive=False,
                ),
            ]
            return any(changed)

    def _watch(self, path: Path, handler: FileSystemEventHandler, *, recursive: bool) -> bool:
        observer = self._observer
        assert observer is not None
        deleted = path in self._gone
        self._gone.discard(path)
        identity = identity_of(path)
        known = self._watches.get(path)
        if known is not None and known[0] == identity and not deleted:
            return False
        if known is not None:
            del self._watches[path]
            with contextlib.suppress(KeyError, OSError):
                observer.unschedule(known[1])
        if identity is None:
            return known is not None
        try:
            watch = observer.schedule(handler, str(path), recursive=recursive, event_filter=EVENTS)
        except OSError:  # gone again, or no inotify watches left: the timed scan finds changes
            return False
        self._watches[path] = (identity, watch)
        return True

    def _event(self) -> None:
        self._storm.count()
        self._hint()

    def _deleted(self, event: FileSystemEvent) -> None:
        if isinstance(event, DirDeletedEvent):
            path = Path(os.fsdecode(event.src_path))
            if path in (self._folder, self._folder.parent):
                self._gone.add(path)

    def _replaced(self) -> None:
        # Not from the observer's own thread: unscheduling joins a thread that may be waiting for
        # it.
        threading.Thread(target=self._refresh_and_hint, daemon=True).start()

    def _refresh_and_hint(self) -> None:
        self.refresh()
        self._hint()

    def _hint(self) -> None:
        with self._hinting:
            if self._observer is not None:
                self._on_hint()


class Emitter(InotifyEmitter):
    """Ends without a word. The library's own forgets its watches while its thread still runs, which
    logs an error for an event of that very moment.
    """

    def on_thread_stop(self) -> None:
        if self._inotify is not None and self._inotify.is_active:
            self._inotify.deactivate()  # its thread reads no event any more, and sees that it ends


class Inside(FileSystemEventHandler):
    """Every event; `first` sees it before the hint."""

    def __init__(self, call: Callable[[], None], first: Callable[[FileSystemEvent], None]) -> None:
        self._call = call
        self._first = first

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._first(event)
        self._call()


class Beside(FileSystemEventHandler):
    """Events of the parent that concern the folder's own name."""

    def __init__(
        self, folder: Path, call: Callable[[], None], first: Callable[[FileSystemEvent], None]
    ) -> None:
        self._folder = str(folder)
        self._call = call
        self._first = first

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._first(event)
        paths = (os.fsdecode(event.src_path), os.fsdecode(event.dest_path or ""))
        if self._folder in paths:
            self._call()


class StormEnd:
    """Calls `call` once, STORM_SECONDS after the last event of a storm."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._count = 0
        self._last = 0.0
        self._timer: threading.Timer | None = None

    def count(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._count = self._count + 1 if now - self._last < STORM_SECONDS else 1
            self._last = now
            if self._count >= STORM_EVENTS and self._timer is None:
                self._start(STORM_SECONDS)

    def stop(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _start(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._check)
        self._timer.daemon = True
        self._timer.start()

    def _check(self) -> None:
        with self._lock:
            self._timer = None
            quiet = time.monotonic() - self._last
            if quiet < STORM_SECONDS:
                self._start(STORM_SECONDS - quiet)
                return
            self._count = 0
        self._call()


def identity_of(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return (facts.st_dev, facts.st_ino)
