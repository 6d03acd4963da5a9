"""What a check of `box doctor` is given and gives back."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from controller.cli import place
from controller.files import read_bounded
from reconcilers.layout import Layout
from specs.config import Config, parse_config
from specs.document import SIZE_MAX
from specs.errors import BoxError, HostError

State = Literal["ok", "warn", "fail"]
SETUP = "./dev setup"


@dataclass(frozen=True)
class Result:
    """One line of the table. `fix` is a command or an instruction, empty when nothing is wrong.

    `needed_for` says what does not work without it.
    """

    name: str
    state: State
    found: str
    fix: str = ""
    needed_for: str = ""


@dataclass(frozen=True)
class Subject:
    """What is examined: the home, which may not exist yet, and its settings.

    What cannot be read is an empty value and a problem, so that every other check is still made.
    """

    home: Path
    layout: Layout | None
    config: Config
    home_problem: BoxError | None = None
    config_problem: BoxError | None = None

    @property
    def kernels(self) -> Path:
        return self.layout.kernels if self.layout else self.home / "kernels"


Check = Callable[[str, Subject], Result]


def subject() -> Subject:
    """Never raises for what is found in the home."""
    home = place.home()
    layout, config = None, Config()
    home_problem: BoxError | None = None
    config_problem: BoxError | None = None
    try:
        layout = place.existing()
    except (BoxError, OSError) as problem:
        home_problem = _explained(problem, home)
    file = home / "config.toml"
    try:
        config = parse_config(read_bounded(file, SIZE_MAX), str(file))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (BoxError, OSError) as problem:
        config_problem = _explained(problem, file)
    return Subject(home, layout, config, home_problem, config_problem)


def _explained(problem: BoxError | OSError, path: Path) -> BoxError:
    if isinstance(problem, BoxError):
        return problem
    fix = f"ls -ld {path}" if os.geteuid() == 0 else place.NOT_OURS
    return HostError(f"{path}: {problem.strerror or problem}", fix=fix)
