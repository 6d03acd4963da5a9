"""What a check may say, the register of all checks, and the report of a run.

A check is a function that attacks one wall. It returns the reading that made it pass, and raises
Failed with the reading that shows a hole, or Unproved when nothing was proved either way. Whatever
else it raises counts as a failure: what could not be checked did not hold.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arena import Arena

PASS, FAIL, WARN = "PASS", "FAIL", "WARN"
# The order of a run: what needs a program in the VMM's place comes last.
GROUPS = ("inside", "lies", "outside", "mounts", "network", "between", "load", "jail", "channel")
COLOURS = {PASS: "\033[32m", FAIL: "\033[31m", WARN: "\033[33m"}


class Failed(Exception):
    """A wall does not hold; the text is the reading that shows it."""


class Unproved(Exception):
    """Neither held nor broken: the text says what was not proved, and why."""


@dataclass(frozen=True)
class Check:
    """One attack. `proves` is what a PASS means, in words; `run` returns the deciding reading."""

    id: str
    proves: str
    run: Callable[[Arena], str]


@dataclass(frozen=True)
class Finding:
    """What came of one check. `seconds` is how long it took."""

    id: str
    result: str
    reading: str
    proves: str
    seconds: float = 0.0


CHECKS: dict[str, Check] = {}


def check(id: str, proves: str) -> Callable[[Callable[[Arena], str]], Callable[[Arena], str]]:
    """Registers a check under its stable id."""

    def register(function: Callable[[Arena], str]) -> Callable[[Arena], str]:
        if id in CHECKS:
            raise ValueError(f"two checks are called {id}")
        CHECKS[id] = Check(id, proves, function)
        return function

    return register


def perform(found: Check, arena: Arena) -> Finding:
    """Run one check; never raises but for an interruption."""
    began = time.monotonic()
    try:
        result, reading = PASS, found.run(arena)
    except Failed as hole:
        result, reading = FAIL, str(hole)
    except Unproved as gap:
        result, reading = WARN, str(gap)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.name}, line {where.lineno}"
        said = " | ".join(str(error).splitlines())
        result, reading = FAIL, f"could not be checked: {type(error).__name__}: {said} ({place})"
    seconds = round(time.monotonic() - began, 2)
    return Finding(found.id, result, plain(reading), found.proves, seconds)


def plain(text: str) -> str:
    """One printable line: what is quoted may come from a hostile guest."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown if len(shown) <= 600 else shown[:597] + "..."


class Report:
    """Collects the findings of a run, and prints each as it comes."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.findings: list[Finding] = []
        self.confinement: dict[str, Any] = {}
        self.measured: dict[str, Any] = {}
        self._began = time.monotonic()

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
        word = finding.result
        if sys.stdout.isatty():
            word = f"{COLOURS[word]}{word}\033[0m"
        print(f"{word}  {finding.id:<24} {finding.reading}", flush=True)

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.result == FAIL]

    def summary(self) -> str:
        counts = [
            f"{sum(f.result == word for f in self.findings)} {word}" for word in (PASS, FAIL, WARN)
        ]
        took = time.monotonic() - self._began
        return f"{', '.join(counts)}; {took:.0f} s"

    def as_json(self) -> str:
        """The machine-readable report; docs/escape-suite.md names its fields."""
        return json.dumps(
            {
                **self.about,
                "seconds": round(time.monotonic() - self._began, 1),
                "passed": not self.failed,
                "checks": [asdict(finding) for finding in self.findings],
                "confinement": self.confinement,
                "measured": self.measured,
            },
            indent=2,
            ensure_ascii=True,
        )


def chosen(wanted: Iterable[str]) -> list[Check]:
    """The checks of these ids or groups ("outside", "outside.uid"), all when none is given.

    Raises ValueError for a name that is no check.
    """
    names = list(wanted)
    unknown = [
        n for n in names if n not in CHECKS and not any(c.startswith(n + ".") for c in CHECKS)
    ]
    if unknown:
        groups = ", ".join(GROUPS)
        raise ValueError(
            f"no such check: {', '.join(unknown)}\n  fix: one of the groups {groups},"
            " or one of the checks that --list names"
        )
    wanted = [c for c in CHECKS if not names or c in names or c.partition(".")[0] in names]
    return [CHECKS[id] for id in sorted(wanted, key=lambda id: GROUPS.index(id.partition(".")[0]))]
