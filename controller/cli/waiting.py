"""`box wait`, and the waiting that apply and delete offer.

Only files are read: what counts is what the controller wrote down, about the Boxfile that is in the
folder now and not an older one. This module must not change anything.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterable

from controller.cli import output
from controller.cli.place import controller_runs, needed, not_running
from controller.cli.view import View, folder_scan, view
from reconcilers.layout import Layout
from specs.errors import BoxError, NoSandbox, UsageError

POLL_SECONDS = 0.1
HOPELESS_ISOLATION = ("EmulationRefused", "KvmNotUsable")
UP_CHECK_SECONDS = 2.0

Check = Callable[[Layout, str], str | None]
"""None once it holds, else what is in the way now, for the message of a timeout."""


class TimedOut(BoxError):
    """What was waited for did not happen in time."""


class Hopeless(BoxError):
    """What was waited for cannot happen until somebody changes the Boxfile."""


def wait(chosen: Namespace) -> int:
    layout = needed()
    if chosen.condition in ("deleted", "delete"):
        check: Check = gone
    else:
        view(layout, chosen.name)
        check = _condition(chosen.condition)
    until(layout, [chosen.name], check, chosen.timeout)
    print(f"{chosen.name}: {output.safe(chosen.condition)}")
    return 0


def until(layout: Layout, names: Iterable[str], check: Check, timeout: float) -> None:
    """Return when the check holds for every name. Raises TimedOut, or NotUp with no controller."""
    started = time.monotonic()
    checked_up = started - UP_CHECK_SECONDS
    for name in names:
        while (obstacle := check(layout, name)) is not None:
            now = time.monotonic()
            if now - started >= timeout:
                raise TimedOut(
                    f"not within {output.span(timeout)}: {obstacle}",
                    where=name,
                    fix=f"box describe {name}",
                )
            if now - checked_up >= UP_CHECK_SECONDS:
                if not controller_runs(layout):
                    raise not_running(layout)
                checked_up = now
            time.sleep(POLL_SECONDS)


def _condition(text: str) -> Check:
    from specs.conditions import ConditionType

    kind, _, status = text.removeprefix("condition=").partition("=")
    known = {one.value.lower(): one.value for one in ConditionType}
    statuses = {"true": "True", "false": "False", "unknown": "Unknown"}
    if kind.lower() not in known:
        raise UsageError(
            f"there is no condition {output.safe(kind)}",
            fix="one of " + ", ".join(known.values()) + ", deleted",
        )
    if (status or "true").lower() not in statuses:
        raise UsageError(f"{output.safe(status)} is not a status", fix="True, False or Unknown")
    wanted, wanted_status = known[kind.lower()], statuses[(status or "true").lower()]

    def check(layout: Layout, name: str) -> str | None:
        try:
            found = view(layout, name)
        except NoSandbox:
            return "it does not exist"
        if not _current(layout, found):
            return "the controller has not taken the Boxfile up yet"
        one = found.condition(wanted)
        if one is None:
            return f"{wanted} has not been judged yet"
        if str(one.status) != wanted_status or not _judged_now(found, one.generation):
            return f"{wanted} is {one.status}: {one.reason}, {output.safe(one.message)}"
        return None

    return check


def as_declared(layout: Layout, name: str) -> str | None:
    """A check: it runs, or is stopped if that is declared. Raises Hopeless when it is refused."""
    found = view(layout, name)
    if not _current(layout, found):
        valid = found.condition("Valid")
        if valid is not None and str(valid.status) == "False" and str(valid.reason) != "Conflict":
            raise Hopeless(f"{valid.reason}: {output.safe(valid.message, 1000)}", where=name)
        return "the controller has not taken the Boxfile up yet"
    ready = found.condition("Ready")
    if ready is None or not _judged_now(found, ready.generation):
        return "not judged yet"
    isolated = found.condition("HardwareIsolated")
    if isolated is not None and str(isolated.reason) in HOPELESS_ISOLATION:
        raise Hopeless(
            f"{isolated.reason}: {output.safe(isolated.message, 1000)}",
            where=name,
            fix="write accel: tcg to accept emulation (for trying and testing), or see box doctor",
        )
    stopped = found.record is not None and found.record.spec is not None
    stopped = stopped and str(found.record.spec.state) == "stopped"  # type: ignore[union-attr]
    if str(ready.status) == "True" or (stopped and str(ready.reason) == "Stopped"):
        return None
    return f"{ready.reason}: {output.safe(ready.message)}"


def gone(layout: Layout, name: str) -> str | None:
    """A check: no file, record or report of it is left."""
    try:
        found = view(layout, name)
    except NoSandbox:
        return None
    if found.file:
        return f"its Boxfile is still there: {output.safe(found.file)}"
    if found.record is not None and found.record.held:
        return "its removal is held back: box prune shows why"
    return "the controller is not done yet"


def _current(layout: Layout, found: View) -> bool:
    """False while the record is of an older Boxfile than the valid one in the folder."""
    from specs.parse import parse_boxfile

    scan = folder_scan(layout)
    file = scan.files.get(found.name) if scan else None
    if file is None:
        return found.record is not None
    parsed = parse_boxfile(file.data, file=file.path, expected_name=found.name)
    return parsed.box is None or (found.record is not None and found.record.spec == parsed.box)


def _judged_now(found: View, generation: int) -> bool:
    return found.record is None or generation >= found.record.generation
