"""`box controller`: hands over to the loop."""

from __future__ import annotations

from argparse import Namespace

from controller.cli.place import created


def controller(chosen: Namespace) -> int:
    layout = created()
    from controller.loop import run

    return run(layout, once=chosen.once)
