"""How the making of an image looks: a bar on a terminal, plain lines anywhere else.

Drawn here rather than by a library: it is one line that is written over, and what a build prints
has to go out between two of its states, escaped.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, Self, TextIO

from controller.cli.output import safe, span

BAR = 24
RATE_SECONDS = 3.0
"""Over how long a rate is measured."""
_CLEAR = "\r\x1b[K"
LINE_SHOWN = 10_000
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Watched:
    """Shows one build, as the API tells of it. Leaves a terminal as it was.

    `run` is the number of that build, `next` that of the first line that was not shown yet.
    """

    def __init__(self, name: str, out: TextIO | None = None, bars: TextIO | None = None) -> None:
        self._name = name
        self._out = out or sys.stdout
        self._bars = bars or sys.stderr
        self._terminal = self._bars.isatty()
        self._stage = ""
        self.run = self.next = 0
        self._drawn = False
        self._rate: list[tuple[float, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def begin(self, run: int) -> None:
        """Another build is shown from now on, from its first line on."""
        self.run, self.next = run, 0

    def show(self, seen: Mapping[str, Any]) -> None:
        """What has come since the last call."""
        lines, first = seen["lines"], int(seen["first"])
        if lines:
            self.wipe()
            if first > self.next:
                print(f"... {first - self.next} lines are not kept", file=self._out)
            for line in lines:
                print(safe(line, LINE_SHOWN), file=self._out)
            self._out.flush()
        self.next = first + len(lines)
        stage = str(seen["stage"])
        if stage != self._stage:
            self._stage = stage
            self._rate.clear()
            if stage and not self._terminal:
                print(f"{self._name}: {safe(stage)}", file=self._bars, flush=True)
        if self._terminal and stage and seen["state"] == "running":
            self._draw(stage, int(seen["done"]), int(seen["total"]))

    def _draw(self, stage: str, done: int, total: int) -> None:
        width = shutil.get_terminal_size().columns - 1
        text = bar(safe(stage), done, total, self._per_second(done))
        self._bars.write(f"{_CLEAR}{text[:width]}")
        self._bars.flush()
        self._drawn = True

    def wipe(self) -> None:
        """Take the bar away until there is something to show again."""
        if self._drawn:
            self._bars.write(_CLEAR)
            self._bars.flush()
            self._drawn = False

    def _per_second(self, done: int) -> float:
        now = time.monotonic()
        self._rate = [each for each in self._rate if now - each[0] <= RATE_SECONDS]
        self._rate.append((now, done))
        then, was = self._rate[0]
        return (done - was) / (now - then) if now > then else 0.0


def bar(stage: str, done: int, total: int, per_second: float) -> str:
    """One line: stage, and how far it is where that is known."""
    if not done and not total:
        return stage
    if not total:
        return f"{stage}  {size(done)}"
    part = min(1.0, done / total)
    filled = round(part * BAR)
    text = (
        f"{stage}  [{'#' * filled}{'-' * (BAR - filled)}] {part:4.0%}  {size(done)}/{size(total)}"
    )
    if per_second >= 1 and done < total:
        text += f"  {size(int(per_second))}/s  {span((total - done) / per_second)} left"
    return text


def size(count: int) -> str:
    """Bytes for people: `12.3 MiB`."""
    number, unit = float(count), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.{0 if unit == 0 or number >= 100 else 1}f} {_UNITS[unit]}"
