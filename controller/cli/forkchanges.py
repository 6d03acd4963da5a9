"""`box fork diff` and `box fork apply`: what a fork changed, and the same brought into its parent.

What differs is told by a guest: the list is read here, with the rights of whoever asked, byte for
byte and within bounds, and made safe before it is shown.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any

from controller.cli import output
from controller.cli.client import WORK_SECONDS, call
from reconcilers.guestfiles import transfers
from reconcilers.guestfiles.beneath import shown
from reconcilers.guestfiles.changes import Entry, LeftOut, TooMuch, listed
from reconcilers.layout import Layout
from specs.pathtext import path_field, path_of

PATH_SHOWN = 4096  # characters
SORTED_MAX = 32 << 20  # bytes of paths; more are shown in the order in which they come
ROWS_MAX = 1000  # of --stat, and of what is left out
LETTERS = {"A": "added", "M": "modified", "D": "deleted", "T": "retyped"}


def diff(layout: Layout, name: str, chosen: Namespace) -> int:
    with transfers.new(layout.transfers) as (transfer, archive):
        answer = _ask(layout, name, {"action": "diff", "transfer": transfer})
        if chosen.form == "json":
            _print_json(name, answer, archive, chosen.stat)
        elif chosen.stat:
            _print_stat(archive)
        else:
            _print_lines(archive)
    return 0


def apply(layout: Layout, name: str, chosen: Namespace) -> int:
    asked = {"action": "apply", "theirs": chosen.theirs, "dry_run": chosen.dry_run}
    with transfers.new(layout.transfers) as (transfer, archive):
        answer = _ask(layout, name, {**asked, "transfer": transfer})
        left_out: list[dict[str, str]] = []
        count = 0
        if answer["result"] != "nothing":
            try:
                left_out, count = _some_left_out(archive)
            except TooMuch as error:  # what was done is done, and is told
                output.note(f"what is left out is not listed: {error.message}")
    refused = answer["result"] == "conflicts"
    if chosen.form == "json":
        told = {**answer, "left_out": left_out, "left_out_count": count}
        output.print_data(told, "json")
        return int(refused)
    _tell_left_out(left_out, count)
    for each in answer["conflicts"]:
        print(_conflict(each, name, answer["of"]))
    unlisted = int(answer["conflict_count"]) - len(answer["conflicts"])
    if unlisted > 0:
        print(f"and {unlisted} more conflicts")
    _tell(answer, name)
    return int(refused)


def _tell(answer: dict[str, Any], name: str) -> None:
    of, count = output.safe(answer["of"]), output.count(answer["changes"], "change")
    overridden = output.count(answer["conflict_count"], "conflict")
    match answer["result"]:
        case "nothing":
            print(f"{of} has all that {name} changed: nothing to apply")
        case "conflicts":
            output.note(
                f"{overridden}, so nothing was applied: both {name} and {of} changed the same\n"
                f"  fix: box fork apply {name} --theirs takes what {name} has; or change {of}"
            )
        case "checked":
            told = f" ({overridden} for {name})" if answer["conflict_count"] else ""
            print(f"{count} of {name} would be applied to {of}{told}; nothing was done")
        case "applied":
            print(
                f"{count} of {name} applied to {of}; what was there is the snapshot "
                f"{output.safe(answer['kept'])}"
            )


def _conflict(each: dict[str, Any], name: str, of: str) -> str:
    path = shown(path_of(each), PATH_SHOWN)
    fork, parent = LETTERS.get(each["fork"], "?"), LETTERS.get(each["parent"], "?")
    return f"C  {path}  ({fork} in {name}, {parent} in {of})"


def _ask(layout: Layout, name: str, asked: dict[str, object]) -> dict[str, Any]:
    body = json.dumps(asked).encode()
    return call(layout, "POST", f"/v1/sandboxes/{name}/fork", body, WORK_SECONDS)


def _print_lines(archive: int) -> None:
    empty = True
    for each in _ordered(archive):
        empty = False
        told = f"  ({_what(each)})" if _what(each) else ""
        slash = "/" if each.kind == "directory" and each.path != b"." else ""
        print(f"{each.letter}  {shown(each.path, PATH_SHOWN)}{slash}{told}")
    _tell_left_out(*_some_left_out(archive))
    if empty:
        output.note("no changes")


def _what(each: Entry) -> str:
    """What of a modified one differs, and what one of another type is now."""
    if each.letter == "T":
        return f"now a {each.kind}"
    words = [f"mode {each.mode:04o}" if word == "mode" else word for word in each.what]
    return ", ".join(words)


def _print_stat(archive: int) -> None:
    counts: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for each in _ordered(archive):
        first, slash, _ = shown(each.path, PATH_SHOWN).partition("/")
        if each.kind == "directory" and each.path != b".":
            slash = "/"
        row = first + slash if len(counts) < ROWS_MAX else "(others)"
        counts.setdefault(row, Counter())[each.letter] += 1
        total[each.letter] += 1
    rows = [[row, *(found[each] for each in LETTERS)] for row, found in counts.items()]
    rows.append(["all", *(total[each] for each in LETTERS)])
    output.print_table(["PATH", "ADDED", "MODIFIED", "DELETED", "RETYPED"], rows)


def _print_json(name: str, answer: dict[str, Any], archive: int, stat: bool) -> None:
    """Written as it is read: there may be more of it than should be in memory."""
    total: Counter[str] = Counter()
    print(f'{{"name": {json.dumps(name)}, "of": {json.dumps(answer["of"])}', end="")
    for key, rows in () if stat else (("changes", _json_rows(archive)), ("left_out", None)):
        print(f',\n "{key}": [', end="")
        separator = "\n  "
        for row in rows if rows is not None else _left_out(archive):
            print(separator + json.dumps(row), end="")
            separator = ",\n  "
        print("]", end="")
    for each in _entries(archive):
        total[each.letter] += 1
    counts = {word: total[letter] for letter, word in LETTERS.items()}
    print(f',\n "counts": {json.dumps(counts)}}}')


def _json_rows(archive: int) -> Iterator[dict[str, object]]:
    for each in _ordered(archive):
        row: dict[str, object] = {"change": each.letter, **path_field(each.path)}
        row["mode"] = f"{each.mode:04o}"
        if each.kind:
            row["type"] = each.kind
        if each.what:
            row["what"] = list(each.what)
        yield row


def _entries(archive: int) -> Iterator[Entry]:
    return (each for each in listed(archive) if isinstance(each, Entry))


def _ordered(archive: int) -> Iterator[Entry]:
    """By path; where there are too many paths to hold, those first that fit."""
    held: list[Entry] = []
    size = 0
    entries = _entries(archive)
    for each in entries:
        held.append(each)
        size += len(each.path) + 200
        if size > SORTED_MAX:
            break
    held.sort(key=lambda each: each.path.split(b"/"))
    yield from held
    yield from entries


def _some_left_out(archive: int) -> tuple[list[dict[str, str]], int]:
    """The first that were left out, and how many there are."""
    found: list[dict[str, str]] = []
    count = size = 0
    for each in _left_out(archive):
        count += 1
        size += sum(map(len, each.values()))
        if count <= ROWS_MAX and size <= SORTED_MAX:
            found.append(each)
    return found, count


def _tell_left_out(found: list[dict[str, str]], count: int) -> None:
    for each in found:
        output.note(f"{shown(path_of(each), PATH_SHOWN)}: {each['why']}")
    if count > len(found):
        output.note(f"and {count - len(found)} more that were left out")


def _left_out(archive: int) -> Iterator[dict[str, str]]:
    for each in listed(archive):
        if isinstance(each, LeftOut):
            yield {**path_field(each.path), "why": each.why}
