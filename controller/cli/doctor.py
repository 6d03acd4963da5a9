"""`box doctor`: every requirement of this host, what was found, and a fix for each failure."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

from controller.cli import output
from controller.cli.doctor_checks import CHECKS, NEEDED_FOR
from controller.cli.doctor_result import Check, Result, Subject, subject
from controller.cli.place import NOT_OURS
from specs.errors import BoxError
from specs.text import visible

COLOURS = {"ok": output.GREEN, "warn": output.YELLOW, "fail": output.RED}


def doctor(chosen: Namespace) -> int:
    """1 when a sandbox could not run here."""
    about = subject()
    results = [_run(check, about) for check in CHECKS]
    failed = [one for one in results if one.state == "fail"]
    if chosen.form == "json":
        output.print_data(
            {"ok": not failed, "checks": [asdict(one) for one in results]}, chosen.form
        )
        return 1 if failed else 0
    sizes = output.widths([(one.state, one.name) for one in results])
    for one in results:
        cells = [one.state, one.name]
        head = output.line(cells, sizes, [COLOURS[one.state]])
        print(f"{head.ljust(sum(sizes) + 2)}  {output.safe(one.found, 300)}")
        if one.state != "ok":
            more = [("needed for", one.needed_for), ("fix", one.fix)]
            for label, text in more:
                if text:
                    print(f"{'':{sum(sizes) + 2}}  {label}: {output.safe(text, 300)}")
    warned = sum(1 for one in results if one.state == "warn")
    print(
        f"\n{len(results) - len(failed) - warned} ok, {warned} to know about, {len(failed)} failed"
        + ("" if failed else ": sandboxes can run here")
    )
    return 1 if failed else 0


def _run(check: Check, about: Subject) -> Result:
    """A check that breaks is a failed check, not the end of the others."""
    function = str(getattr(check, "__name__", "check"))
    name = function.replace("_", " ")
    return replace(_answer(check, name, about), needed_for=NEEDED_FOR.get(function, ""))


def _denied(name: str, about: Subject, problem: PermissionError) -> Result:
    """Most often all of the home is somebody else's."""
    path = Path(os.fsdecode(problem.filename)) if problem.filename else about.home
    foreign = about.home in (path, *path.parents) and os.geteuid() != 0
    why = f"{path}: {problem.strerror}"
    return Result(name, "fail", visible(why, 300), NOT_OURS if foreign else f"ls -ld {path}")


def _answer(check: Check, name: str, about: Subject) -> Result:
    try:
        return check(name, about)
    except BoxError as problem:
        return Result(name, "fail", problem.message, problem.fix)
    except PermissionError as problem:
        return _denied(name, about, problem)
    except Exception as problem:
        why = visible(f"{type(problem).__name__} {problem}", 300)
        return Result(name, "fail", f"could not be checked: {why}")
