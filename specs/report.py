"""What was seen of a sandbox in the last pass, as `observed.toml` holds it and the API sends it.

A report is for reading by people and tools; no decision is made from one, and anybody may delete
it. It must not read a clock or a file.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from specs.conditions import Condition
from specs.drift import Drift
from specs.plain import without_none


class Failure(BaseModel):
    """The step that failed last; `replay` is the shell line that repeats it, or empty."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: str
    message: str
    fix: str = ""
    replay: str = ""


class Report(BaseModel):
    """Times are ISO-8601 UTC. Empty text means "not known"."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    generation: int
    state: str = ""
    backend: str = ""
    accel: str = ""
    isolation: str = ""
    source: str = ""
    created: str = ""
    last_change: str = ""
    conditions: tuple[Condition, ...] = ()
    vmm: dict[str, Any] = {}
    guest: dict[str, Any] = {}
    network: dict[str, Any] = {}
    mounts: tuple[dict[str, Any], ...] = ()
    image: dict[str, Any] = {}
    confinement: tuple[dict[str, Any], ...] = ()
    drift: tuple[Drift, ...] = ()
    failure: Failure | None = None

    def to_toml_dict(self) -> dict[str, Any]:
        """Plain data without None and without empty tables, which TOML cannot or need not hold."""
        return {
            key: pruned
            for key, value in self.model_dump(mode="json").items()
            if (pruned := without_none(value)) not in (None, {}, [])
        }

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """The report in `data`, unknown keys ignored; raises ValueError when it is not one."""
        return cls.model_validate(data)
