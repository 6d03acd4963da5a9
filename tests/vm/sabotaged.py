"""One start of every sandbox by a controller whose launchers lack a layer; it ends with the first.

A script, run in the place of `box controller`: `sabotaged.py PROGRAM`, where PROGRAM is the file
that takes the place of the launcher's bootstrap. The controller ends the moment its VMM runs, so
no reading of it is ever made; what it leaves is a VMM without that layer under the sandbox's name,
in its group, with a launch record that says that all is well.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from controller.cli.main import main
from reconcilers import helpers, microvm
from reconcilers.confinement import filters, following
from reconcilers.confinement.policy import Confinement
from reconcilers.confinement.start import Launched
from reconcilers.mounts import Directory

PATIENCE = 1.0  # seconds, with filters that do not come


def leave_without_a_look(program: str) -> None:
    following._BOOTSTRAP = program
    start = microvm.start

    async def started(*arguments: Any) -> NoReturn:
        await start(*arguments)
        os._exit(0)

    vars(microvm)["start"] = started
    loaded: Any = filters.all_loaded

    async def impatient(*arguments: Any) -> bool:
        await loaded(*arguments[:-1], PATIENCE)
        return True

    async def whatever_it_lacks(launched: Launched, want: Confinement, _: Directory) -> None:
        await loaded(launched.pid, launched.at_launch, want.own_filters, PATIENCE)

    vars(filters)["all_loaded"] = impatient
    vars(helpers)["_until_ready"] = whatever_it_lacks


if __name__ == "__main__":
    leave_without_a_look(Path(sys.argv[1]).read_text())
    sys.argv = ["box", "controller"]
    sys.exit(main())
