"""What several verbs take: names, files, forms, times, and what completion offers for them.

Part of the parser, so free of our own imports until one of them is needed. Completion must be quick
and must not fail.
"""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentParser as Parser
from collections.abc import Callable, Iterable
from typing import Any

Verb = Callable[..., Parser]


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 90, 90s or 5m")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def conditions(**_: object) -> list[str]:
    from specs.conditions import ConditionType

    return [*(one.value for one in ConditionType), "deleted"]


def example_names(**_: object) -> list[str]:
    from controller.cli.examples import names

    return names()


def known_labels(prefix: str, parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """As `known_names`."""
    from controller.cli.place import existing
    from reconcilers.snapshots import listed

    try:
        layout = existing()
        found = listed(layout.disks(parsed_args.name)) if layout else []
        return [one.label for one in found if one.label.startswith(prefix)]
    except Exception:
        return []


def known_names(prefix: str, **_: object) -> Iterable[str]:
    """For completion: must be quick and must not fail."""
    from controller.cli.place import existing
    from controller.cli.view import views

    try:
        layout = existing()
        return [one.name for one in views(layout) if one.name.startswith(prefix)] if layout else []
    except Exception:
        return []


def known_names_or(*others: str) -> Callable[..., Iterable[str]]:
    """Sandboxes, and words that may stand in place of one."""

    def complete(prefix: str, **rest: object) -> Iterable[str]:
        return [*known_names(prefix, **rest), *(one for one in others if one.startswith(prefix))]

    return complete


def name(parser: Parser, *, nargs: str | None = None, known: bool = True) -> None:
    argument: Any = parser.add_argument("name", metavar="NAME", nargs=nargs, help="the sandbox")
    if known:
        argument.completer = known_names


def files(parser: Parser, *, required: bool = True) -> None:
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        required=required,
        metavar="FILE|DIR|-",
        help="a Boxfile, a folder of them, or standard input",
    )


def form(parser: Parser, forms: tuple[str, ...]) -> None:
    parser.add_argument("-o", "--output", dest="form", choices=forms, default="table")


def timeout(parser: Parser) -> None:
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=120.0,
        metavar="TIME",
        help="90, 90s, 5m; default 120s",
    )
