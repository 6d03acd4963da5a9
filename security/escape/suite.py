"""One run: reads the arguments, makes the arena, performs the checks, reports, cleans up.

An interruption (SIGINT, SIGTERM, SIGHUP) ends the checks and not the clean-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from . import (  # noqa: F401  # they register their checks
    between,
    channel,
    inside,
    jail,
    lies,
    load,
    mounts,
    network,
    outside,
)
from .arena import Arena
from .home import BoxError, Home
from .programs import COMMAND, NO_COMPILER, compile_all
from .report import CHECKS, FAIL, Finding, Report, chosen, perform

INTERRUPTED = 130

BACKENDS = ("qemu", "firecracker", "krun", "podman")


class Interrupted(BaseException):
    """A signal asked us to end. Not an Exception: no check may take it for a finding."""


def main(words: Sequence[str]) -> int:
    """0 when no escape succeeded, 1 when one did, 2 for a wrong call, 130 when interrupted."""
    wanted = _parser().parse_args(words)
    if wanted.list:
        for found in CHECKS.values():
            print(f"{found.id:<24} {found.proves}")
        return 0
    try:
        checks = chosen(wanted.only)
    except ValueError as error:
        print(f"escape-test: {error}", file=sys.stderr)
        return 2
    if wanted.compile:
        return _compile(Path(wanted.compile))
    if unusable := _unusable(wanted):
        print(f"escape-test: {unusable}", file=sys.stderr)
        return 2
    box = _command(wanted.box)
    report = Report(
        {
            "isolation": wanted.isolation,
            "backend": wanted.backend,
            "accel": "",
            "user": "root" if os.geteuid() == 0 else "ordinary",
            "kernel": platform.release(),
        }
    )
    _on_signal(_interrupt)
    ended = False
    try:
        with (
            tempfile.TemporaryDirectory(prefix="box-escape-") as temporary,
            _arena(box, Path(temporary), wanted, report) as arena,
        ):
            report.confinement, report.measured = arena.confinement, arena.measured
            for found in checks:
                report.add(perform(found, arena))
    except Interrupted:
        ended = True
    except BoxError as error:
        report.add(Finding("suite.ready", FAIL, str(error), "the sandboxes under attack exist"))
    if wanted.json:
        Path(wanted.json).write_text(report.as_json() + "\n")
    print(report.summary() + (", interrupted" if ended else ""))
    if ended:
        return INTERRUPTED
    return 1 if report.failed else 0


def _compile(folder: Path) -> int:
    try:
        for program in compile_all(folder):
            print(program)
    except (BoxError, OSError) as error:
        print(f"escape-test: {error}", file=sys.stderr)
        return 2
    return 0


def _unusable(wanted: argparse.Namespace) -> str:
    """Why the attacks cannot be tried at all with these arguments; empty when they can."""
    if not wanted.box:
        return "name the box command to attack (--help says more)"
    if shutil.which(_command(wanted.box)[0]) is None:
        return f"there is no command {wanted.box}"
    if wanted.json and (where := _unwritable(Path(wanted.json))):
        return f"no report can be written: {where}"
    if wanted.programs:
        return "" if os.path.isdir(wanted.programs) else f"there is no folder {wanted.programs}"
    return "" if shutil.which(COMMAND[0]) else NO_COMPILER


def _unwritable(report: Path) -> str:
    """Why this file cannot be written, known before the minutes that the attacks take."""
    if report.is_dir():
        return f"{report} is a folder"
    if not report.parent.is_dir():
        return f"there is no folder {report.parent}"
    held = report if report.exists() else report.parent
    return "" if os.access(held, os.W_OK) else f"{held} is not writable"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="escape-test.sh", description="attack the sandboxes that BOX makes, and say what held"
    )
    parser.add_argument(
        "box", metavar="BOX", nargs="?", help="the box command; several words when quoted"
    )
    parser.add_argument("isolation", nargs="?", choices=["strict", "standard"], default="strict")
    parser.add_argument(
        "backend", metavar="BACKEND", nargs="?", default="qemu", choices=BACKENDS,
        help="what a Boxfile may name: %(choices)s",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the machine-readable report there")
    parser.add_argument(
        "--only", metavar="ID", action="append", default=[], help="this check or group alone"
    )
    parser.add_argument("--accel", choices=["auto", "kvm", "tcg"], help="default: what works here")
    parser.add_argument(
        "--scale",
        type=float,
        default=os.environ.get("BOX_ESCAPE_SCALE", "1"),
        help="stretch every time limit, for slow machines (or BOX_ESCAPE_SCALE)",
    )
    parser.add_argument(
        "--compile", metavar="DIR", help="only compile the C programs of the attacks into DIR"
    )
    parser.add_argument(
        "--programs", metavar="DIR", help="take them from there; no compiler is needed then"
    )
    parser.add_argument("--list", action="store_true", help="only name the checks")
    return parser


def _command(text: str) -> list[str]:
    """The box command as words; a name is searched in PATH now, so that it stays the same one."""
    words = [text] if os.path.exists(text) else shlex.split(text)
    found = shutil.which(words[0])
    return [os.path.abspath(found) if found else words[0], *words[1:]]


@contextlib.contextmanager
def _arena(
    box: list[str], folder: Path, wanted: argparse.Namespace, report: Report
) -> Iterator[Arena]:
    accel = wanted.accel or _accelerator(box, folder, wanted.scale)
    report.about["accel"] = accel
    arena = Arena(
        box,
        folder,
        isolation=wanted.isolation,
        backend=wanted.backend,
        accel=accel,
        scale=wanted.scale,
        ready_made=Path(wanted.programs) if wanted.programs else None,
    )
    finished = False
    try:
        arena.home.start()
        yield arena
        finished = True
    finally:
        _on_signal(signal.SIG_IGN)  # once is enough: the clean-up must come to its end
        left = arena.close()
        proves = "after its deletion nothing of a sandbox is left on the host"
        if left:
            report.add(Finding("after.clean", FAIL, "; ".join(left), proves))
        elif finished:
            report.add(Finding("after.clean", "PASS", "no process, group, file or mount", proves))


def _accelerator(box: list[str], folder: Path, scale: float) -> str:
    """ "auto" where `box doctor` finds that hardware virtualization works, else "tcg"."""
    look = folder / "look"
    look.mkdir()
    said = Home(box, look, scale).run("doctor", "-o", "json", check=False, seconds=120).stdout
    with contextlib.suppress(ValueError, KeyError, TypeError):
        for one in json.loads(said)["checks"]:
            if one["name"] == "hardware virtualization" and one["state"] == "ok":
                return "auto"
    return "tcg"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(signal.Signals(number).name)


def _on_signal(what: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, what)  # type: ignore[arg-type]
