"""`box wait`, and the waiting that apply and delete offer.

Only files are read: what counts is what the controller wrote down, about the Boxfile that is in the
folder now and not an older one. This module must not change anything.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from controller.cli import output
from controller.cli.beside import Beside
from controller.cli.data import ERASED, fate
from controller.cli.fixes import fix_for
from controller.cli.place import controller_runs, needed, not_running
from controller.cli.view import View, folder_scan, view
from reconcilers.layout import Layout
from specs.errors import BoxError, NoSandbox, UsageError

if TYPE_CHECKING:
    from specs.conditions import Condition

POLL_SECONDS = 0.1
HOPELESS_ISOLATION = ("EmulationRefused", "KvmNotUsable")
UP_CHECK_SECONDS = 2.0
# A refusal may be of the text before this one.
SETTLE_SECONDS = 2.0
# Whoever waits longer than this is told for what.
PROGRESS_SECONDS = 5.0

Check = Callable[[Layout, str], str | None]
"""None once it holds, else what is in the way now, for the message of a timeout: an Obstacle where
more is known to be done about it than to look.
"""


class Obstacle(str):
    """What is in the way, and the `fix` for it, which may be empty."""

    fix: str

    def __new__(cls, text: str, fix: str) -> Obstacle:
        made = super().__new__(cls, text)
        made.fix = fix
        return made


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
    """Return when the check holds for every name. Raises TimedOut, or NotUp with no controller.

    What files say is only believed while a controller answers for them; that nothing is left of a
    sandbox needs nobody's word.
    """
    started = time.monotonic()
    seen_up = False
    next_look = started
    told = ""
    for name in names:
        with Beside(layout, name) as beside:
            while (obstacle := check(layout, name)) is not None or (
                check is not gone and not seen_up
            ):
                now = time.monotonic()
                if now >= next_look:
                    seen_up = controller_runs(layout)
                    next_look = now + (UP_CHECK_SECONDS if seen_up else POLL_SECONDS)
                    if not seen_up and now - started >= UP_CHECK_SECONDS:  # it may just be starting
                        raise not_running(layout)
                    if seen_up and obstacle is None:
                        continue
                shown = beside.look()
                if obstacle not in (None, told) and now - started >= PROGRESS_SECONDS and not shown:
                    told = obstacle or ""
                    output.note(f"{name}: waiting: {told}")
                if obstacle is not None and now - started >= timeout:
                    raise TimedOut(
                        f"not within {output.span(timeout)}: {obstacle}",
                        where=name,
                        fix=getattr(obstacle, "fix", "") or f"box describe {name}",
                    )
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
        if not taken_up(layout, found):
            return "the controller has not taken the Boxfile up yet"
        one = found.condition(wanted)
        if one is None:
            return f"{wanted} has not been judged yet"
        if str(one.status) != wanted_status or not _judged_now(found, one.generation):
            fix = fix_for(layout, name, one, found.failure)
            return Obstacle(f"{wanted} is {one.status}: " + _words(one, ", "), fix)
        return None

    return check


class AsDeclared:
    """A check: it runs, or is stopped if that is declared. Raises Hopeless when that cannot come
    about until somebody changes something.
    """

    def __init__(self) -> None:
        self._wrong_since: dict[tuple[str, str], float] = {}

    def __call__(self, layout: Layout, name: str) -> str | None:
        found = view(layout, name)
        wrong = self._wrong(layout, found)
        if wrong is not None:
            return wrong
        if not taken_up(layout, found):
            return "the controller has not taken the Boxfile up yet"
        ready = found.condition("Ready")
        if ready is None or not _judged_now(found, ready.generation):
            return "not judged yet"
        isolated = found.condition("HardwareIsolated")
        if isolated is not None and str(isolated.reason) in HOPELESS_ISOLATION:
            raise _hopeless(layout, found, isolated)
        data = found.condition("DataReady")
        if data is not None and str(data.status) == "False":
            raise _hopeless(layout, found, data)
        stopped = found.record is not None and found.record.spec is not None
        stopped = stopped and str(found.record.spec.state) == "stopped"  # type: ignore[union-attr]
        image = found.condition("ImageReady")
        if not stopped and image is not None and str(image.status) == "False":
            # A VM from the former image may run on meanwhile, and be Ready.
            return Obstacle(_words(image, ": "), fix_for(layout, name, image, found.failure))
        if str(ready.status) == "True" or (stopped and str(ready.reason) == "Stopped"):
            return None
        return Obstacle(_words(ready, ": "), fix_for(layout, name, ready, found.failure))

    def _wrong(self, layout: Layout, found: View) -> str | None:
        """What stands against it. Hopeless once it has stood for a while, but for a layer that a
        live VMM lacks: it is being mended, however long that takes this host, until that fails.
        """
        for kind in ("Valid", "Confined"):
            one = found.condition(kind)
            if one is None or str(one.status) != "False":
                self._wrong_since.pop((found.name, kind), None)
                continue
            mending = str(one.reason) == "LayerMissing" and found.failure is None
            now = time.monotonic()
            if mending:
                self._wrong_since[found.name, kind] = now
            if now - self._wrong_since.setdefault((found.name, kind), now) >= SETTLE_SECONDS:
                raise _hopeless(layout, found, one)
            return f"{one.reason}: {output.safe_lines(one.message)}"
        return None


def _hopeless(layout: Layout, found: View, why: Condition) -> Hopeless:
    lines = output.safe_lines(why.message)
    between = "\n  " if "\n" in lines else " "
    message = f"{why.reason}:{between}" + lines.replace("\n", "\n  ")
    return Hopeless(message, where=found.name, fix=fix_for(layout, found.name, why, found.failure))


def _words(one: Condition, between: str) -> str:
    message = output.safe(one.message)
    return f"{one.reason}{between}{message}" if message else str(one.reason)


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
    if fate(layout, name, False).endswith(ERASED):
        return "its /data is erased 60 s after its Boxfile went"
    return "the controller is not done yet"


def taken_up(layout: Layout, found: View) -> bool:
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
