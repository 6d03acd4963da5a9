"""Which home this command works on, and whether its controller runs.

Reading never creates anything: a home that does not exist yet is an empty one. This module must not
know what the files in a home mean.
"""

from __future__ import annotations

import os
from pathlib import Path

from controller.cli.output import note
from reconcilers.layout import Layout
from specs.errors import NoSandbox, NotUp, UsageError

START = "box controller"
NOT_OURS = "it belongs to somebody else: set BOX_HOME to a folder of your own, or run box with sudo"


def home() -> Path:
    """$BOX_HOME, or ~/.box. Raises UsageError for a `~user` that cannot be resolved."""
    wanted = os.environ.get("BOX_HOME") or "~/.box"
    try:
        return Path(wanted).expanduser().absolute()
    except RuntimeError as error:  # no such user, or a user without a home
        raise UsageError(
            "no home folder is known for it", where=wanted, fix="set BOX_HOME to a whole path"
        ) from error


def existing() -> Layout | None:
    """The paths of the home, or None when no box has been used here yet."""
    from controller.home import read_home

    return read_home(home())


def needed() -> Layout:
    """The paths of an existing home. Raises NoSandbox, since without a home there is none."""
    layout = existing()
    if layout is None:
        raise NoSandbox(
            "there is no sandbox here yet", where=str(home()), fix="box new NAME writes a first one"
        )
    return layout


def created() -> Layout:
    """The paths of the home, made when it is missing. Raises HostError, UsageError."""
    from controller.home import ensure_home

    return ensure_home(home())


def controller_runs(layout: Layout) -> bool:
    from controller.socketfile import answers

    return answers(layout.socket)


def say_when_down(layout: Layout) -> None:
    """Tell a reader of old facts that they are old."""
    if not controller_runs(layout):
        note(f"the controller is not running: this is what it last saw. Start it: {START}")


def not_running(layout: Layout) -> NotUp:
    return NotUp(
        "the controller is not running", where=str(layout.socket), fix=f"start it: {START}"
    )
