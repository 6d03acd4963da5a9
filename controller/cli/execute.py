"""`box exec` and `box run` in their longer forms: options checked, then the same client as for the
short one.
"""

from __future__ import annotations

import os
from argparse import Namespace

from controller.cli import execclient
from controller.cli.execclient import Wanted
from specs.errors import UsageError

FORM = "box {} NAME [-i] -- CMD [ARG...]"


def exec(chosen: Namespace) -> int:
    if chosen.tty:
        raise UsageError("-t is not supported yet", fix="leave it out; -i forwards standard input")
    if not chosen.command:
        raise UsageError("the command is missing: it comes after --", fix=FORM.format(chosen.verb))
    wanted = Wanted(
        chosen.verb,
        chosen.name,
        [os.fsencode(word) for word in chosen.command],
        stdin=chosen.stdin,
        more=_more(chosen),
    )
    return execclient.run(wanted)


run = exec  # the stream is the same; the controller takes another VM


def _more(chosen: Namespace) -> dict[str, object]:
    more: dict[str, object] = {}
    if chosen.env:
        more["env"] = dict(_variable(text) for text in chosen.env)
    if chosen.cwd:
        more["cwd"] = chosen.cwd
    if chosen.user:
        more["user"] = chosen.user
    if chosen.timeout is not None:
        more["timeout_ms"] = max(1, int(chosen.timeout * 1000))
    return more


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"-e {text}: KEY=VALUE is expected")
    return key, value
