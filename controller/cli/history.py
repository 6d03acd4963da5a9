"""`box drift`, `box events` and `box logs`: what happened, from the files that say so."""

from __future__ import annotations

import os
import stat
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from controller.cli import output
from controller.cli.place import existing, needed, say_when_down
from controller.cli.view import View, view, views
from reconcilers.layout import Layout
from specs.drift import Event
from specs.errors import NotUp
from specs.text import one_line

FOLLOW_SECONDS = 0.2
LOG_MAX = 8 * 1024 * 1024


def drift(chosen: Namespace) -> int:
    layout = existing() if chosen.name is None else needed()
    found = [] if layout is None else _chosen_views(layout, chosen.name)
    rows = [
        {"name": one.name, **asdict(drift)}
        for one in found
        for drift in (one.report.drift if one.report else ())
    ]
    if layout is not None:
        say_when_down(layout)
    if chosen.form != "table":
        output.print_data({"drift": rows}, chosen.form)
    elif not rows:
        _say_none(found)
    else:
        shown = [
            [
                row["name"],
                row["field"],
                row["desired"],
                row["observed"],
                output.age(row["first_seen"]),
                row["action"],
                f"{output.age(row['corrected'])} ago" if row["corrected"] else "open",
            ]
            for row in rows
        ]
        head = ["NAME", "FIELD", "DESIRED", "OBSERVED", "SEEN", "ACTION", "CORRECTED"]
        output.print_table(head, shown)
    return 0


def _say_none(found: list[View]) -> None:
    """No more than is known: what was not compared does not agree."""
    unknown = [one.name for one in found if not one.compared]
    if not found:
        print("there is no sandbox, so there is nothing to differ from")
    elif unknown:
        print(f"no drift is known, but not compared with their Boxfiles: {', '.join(unknown)}")
        print("box get says why")
    else:
        print("no drift: the host is as the Boxfiles say")


def _chosen_views(layout: Layout, name: str | None) -> list[View]:
    return [view(layout, name)] if name is not None else views(layout)


def events(chosen: Namespace) -> int:
    layout = needed()
    printed: dict[str, list[Event]] = {}
    _print_events(_new_events(layout, chosen.name, printed), chosen.name is None)
    while chosen.follow:
        time.sleep(FOLLOW_SECONDS)
        _print_events(_new_events(layout, chosen.name, printed), chosen.name is None)
    return 0


def _new_events(
    layout: Layout, name: str | None, printed: dict[str, list[Event]]
) -> Iterator[tuple[str, Event]]:
    """Events not yet in `printed`, by time; remembers them there."""
    from controller.store import Store

    store = Store(layout)
    fresh: list[tuple[str, Event]] = []
    names = [one.name for one in views(layout)] if name is None else [name]
    if name is not None and not printed:
        view(layout, name)
    for one in names:
        found = store.read_events(one)
        fresh += [(one, event) for event in found[_already(printed.get(one, []), found) :]]
        printed[one] = found
    yield from sorted(fresh, key=lambda pair: pair[1].time)


def _already(before: list[Event], now: list[Event]) -> int:
    """How many events of `now` were there before; the oldest may have been dropped since."""
    if not before:
        return 0
    for count in range(len(now), 0, -1):
        if now[count - 1] == before[-1]:
            return count
    return 0


def _print_events(found: Iterator[tuple[str, Event]], with_name: bool) -> None:
    rows = [
        [event.time, *([name] if with_name else []), event.kind, one_line(event.message)]
        for name, event in found
    ]
    shown = [[output.safe(cell, 1000) for cell in row] for row in rows]
    sizes = output.widths(shown)
    for row in shown:
        print(output.line(row, sizes), flush=True)


def logs(chosen: Namespace) -> int:
    layout = needed()
    found = view(layout, chosen.name)
    path = layout.console_log(found.name)
    log = _open(path)
    if log is None and not chosen.follow:
        raise NotUp(
            "there is no console log: no VM of it runs",
            where=found.name,
            fix=f"box describe {found.name}",
        )
    position = 0
    if log is not None:
        text = os.pread(log, LOG_MAX, 0)
        position = len(text)
        _print_log(_last_lines(text, chosen.tail))
    while chosen.follow:
        time.sleep(FOLLOW_SECONDS)
        log, position = _follow(path, log, position)
    return 0


def _open(path: Path) -> int | None:
    """A descriptor of a regular file, or None."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        return None
    return opened


def _follow(path: Path, log: int | None, position: int) -> tuple[int | None, int]:
    """Print what is new; a log that was replaced or cut short is begun again."""
    if log is not None:
        text = os.pread(log, LOG_MAX, position)
        _print_log(text)
        position += len(text)
        if text:
            return log, position
    current = _open(path)
    if current is None:
        return log, position
    if log is not None:
        same = os.path.samestat(os.fstat(log), os.fstat(current))
        if same and os.fstat(log).st_size >= position:
            os.close(current)
            return log, position
        os.close(log)
    return current, 0


def _last_lines(text: bytes, count: int | None) -> bytes:
    if count is None:
        return text
    return b"".join(text.splitlines(keepends=True)[-count:]) if count > 0 else b""


def _print_log(text: bytes) -> None:
    """A guest's bytes, with everything a terminal would act on made visible."""
    if text:
        plain = text.replace(b"\r\n", b"\n").decode("utf-8", "replace")
        print(output.safe_lines(plain, len(plain)), end="", flush=True)
