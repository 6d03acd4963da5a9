"""The verbs that act on /data with their arguments, for the parser."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from controller.cli import words
from controller.cli.words import Verb

OF_FORKS = ("diff", "apply", "discard")
"""What may stand behind `box fork` instead of a sandbox."""


def add(verb: Verb) -> None:
    _transfer(verb)
    one = verb(
        "snapshot",
        "snapshots",
        "freeze what is in /data, under a label; the VM is stopped",
        "box snapshot agent before-upgrade",
        "box snapshot agent        # the label is the time",
    )
    words.name(one)
    one.add_argument("label", metavar="LABEL", nargs="?", help="a-z, 0-9 and -; default: the time")
    one = verb(
        "snapshots",
        "snapshots",
        "list the snapshots of /data, or delete one",
        "box snapshots agent",
        "box snapshots agent --delete before-upgrade",
    )
    words.name(one)
    words.form(one, ("table", "json", "yaml", "toml"))
    _label(
        one,
        "--delete",
        help="delete this one, and merge layers that only it kept apart; needs a controller",
    )
    one = verb(
        "restore",
        "snapshots",
        "put a snapshot back into /data; what is there now becomes another one",
        "box restore agent before-upgrade",
        "box restore agent before-upgrade --discard",
    )
    words.name(one)
    _label(one, "label")
    one.add_argument("--discard", action="store_true", help="erase what is there now")
    one = verb(
        "reset",
        "snapshots",
        "begin with an empty /data; what is there now becomes a snapshot",
        "box reset agent",
        "box reset agent --discard",
    )
    words.name(one)
    one.add_argument("--discard", action="store_true", help="erase what is there now")
    _fork(verb)


def _fork(verb: Verb) -> None:
    one = verb(
        "fork",
        "forks",
        "make a sandbox whose /data begins with that of another, copied on write",
        "box fork agent try        # the Boxfile of try is that of agent, with fork_of: agent",
        "box fork diff try         # what try changed since: added, modified, deleted",
        "box fork apply try        # brings that into agent; --dry-run only says what it would",
        "box fork discard try",
    )
    one.usage = """box fork NAME FORK [--wait] [--timeout TIME]
       box fork diff FORK [--stat] [-o json]
       box fork apply FORK [--theirs] [--dry-run] [-o json]
       box fork discard FORK"""
    made: Any = one.add_argument("words", metavar="NAME FORK", nargs=2, help="two sandboxes")
    made.completer = words.known_names_or(*OF_FORKS)
    one.add_argument("--stat", action="store_true", help="diff: only how much, by directory")
    one.add_argument("--theirs", action="store_true", help="apply: the fork wins every conflict")
    one.add_argument("--dry-run", action="store_true", help="apply: only say what would be done")
    words.form(one, ("table", "json"))
    one.add_argument("--wait", action="store_true", help="until the fork is as declared")
    words.timeout(one)


def _transfer(verb: Verb) -> None:
    one = verb(
        "data",
        "transfer",
        "move a directory into /data of a stopped sandbox, or all of /data into a directory",
        "box data import agent ~/project     # as cp -a ~/project/. /data/ would",
        "box data export agent ./agent-data  # a new directory, or an empty one",
    )
    one.usage = "box data import|export NAME DIR"
    one.add_argument(
        "action", metavar="import|export", choices=("import", "export"), help="into /data, or out"
    )
    words.name(one)
    one.add_argument("folder", metavar="DIR", help="the directory on this host")


def _label(parser: ArgumentParser, argument: str, help: str = "the snapshot") -> None:
    made: Any = parser.add_argument(argument, metavar="LABEL", help=help)
    made.completer = words.known_labels
