"""What a check of `box doctor` is given and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from controller.cli import place
from reconcilers.layout import Layout
from specs.config import Config, parse_config

State = Literal["ok", "warn", "fail"]
SETUP = "./dev setup"


@dataclass(frozen=True)
class Result:
    """One line of the table. `fix` is a command or an instruction, empty when nothing is wrong."""

    name: str
    state: State
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Subject:
    """What is examined: the home, which may not exist yet, and its settings."""

    home: Path
    layout: Layout | None
    config: Config

    @property
    def kernels(self) -> Path:
        return self.layout.kernels if self.layout else self.home / "kernels"


Check = Callable[[str, Subject], Result]


def subject() -> Subject:
    """Raises InvalidBoxfile for a config.toml with mistakes, HostError for a garbled home."""
    home = place.home()
    file = home / "config.toml"
    config = parse_config(file.read_bytes(), str(file)) if file.is_file() else Config()
    return Subject(home, place.existing(), config)
