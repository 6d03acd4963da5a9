"""What the loop holds in memory of one sandbox between two passes.

Everything here can be rebuilt from the folder, the records and the host; losing it costs a full
pass, never data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.onerun import OneRun
from controller.records import Record
from reconcilers.accel import Choice
from reconcilers.launched import as_launched
from reconcilers.live import Live
from reconcilers.mounts import Directory, Refused
from specs.boxfile import Boxfile
from specs.conditions import Condition, ConditionType, Reason
from specs.drift import Drift
from specs.errors import NoSandbox
from specs.report import Failure, Report

DRIFT_KEPT = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the newest text of the Boxfile is in force, and if not, why."""

    ok: bool
    reason: Reason
    message: str


ACCEPTED = Verdict(True, Reason.Accepted, "")


@dataclass(slots=True)
class Entry:
    """One sandbox. `removing` means that its Boxfile is gone and the prune guard lets it go.

    `erase_by_hand`: it is being deleted with `--data`. `gone_since` is on the monotonic clock: a
    wall clock that jumps must not erase data early. `attempts` counts failed passes in a row,
    `exits` deaths of its VMM since it last stayed up for a whole period, `silent` attempts to reach
    its guest. `directories` are what its mounts lead to on the host, as the last pass saw them,
    `refused_mounts` those it cannot have; `served` and `lost` are the same of the mounts that the
    VM which runs was started with. `over_ceiling`: policy.toml forbids even the last good
    spec, so it is kept stopped. `run`: a VM that is there for one command of `box run`.
    `looked_up`: this pass has asked what its base means. `tag_error`: why a registry could not be
    asked whether its tag has moved. `asked_image`: the digest of what `box build --pull` found for
    it, until its VM has that.
    """

    record: Record
    verdict: Verdict = ACCEPTED
    text_digest: str = ""
    removing: bool = False
    gone_since: float | None = None
    erase_by_hand: bool = False
    over_ceiling: bool = False
    run: OneRun | None = None
    live: Live | None = None
    choice: Choice | None = None
    converged_generation: int = -1
    attempts: int = 0
    exits: int = 0
    silent: int = 0
    looked_up: bool = False
    tag_error: str = ""
    asked_image: str = ""
    exited: str = ""
    out_of_memory: bool = False
    failure: Failure | None = None
    failure_layer: str = ""
    kernel_differs: str = ""
    directories: tuple[Directory, ...] = ()
    refused_mounts: tuple[Refused, ...] = ()
    served: tuple[Directory, ...] = ()
    lost: tuple[Refused, ...] = ()
    conditions: dict[ConditionType, Condition] = field(default_factory=dict)
    drift: list[Drift] = field(default_factory=list)
    last_change: str = ""
    report: Report | None = None
    first_generation: int = field(init=False)

    def __post_init__(self) -> None:
        self.first_generation = self.record.generation

    @property
    def refused(self) -> bool:
        """Whether it may not start here and now, though its Boxfile is good."""
        by_host = self.choice is not None and self.choice.refused
        return self.over_ceiling or by_host or bool(self.refused_mounts)

    @property
    def changed(self) -> bool:
        """Whether its Boxfile has another text than what converged last, or, where nothing has
        since this controller began, than it had then.
        """
        return self.record.generation != max(self.converged_generation, self.first_generation)

    @property
    def started(self) -> Boxfile | None:
        """The last good spec with the settings that the VM which runs was started with."""
        box, live = self.run.spec if self.run else self.record.spec, self.live
        if box is None or live is None:
            return box
        return as_launched(box, live.record.settings)

    @property
    def box(self) -> Boxfile | None:
        """The last good spec, or that of a run; None when it should be gone or never was valid."""
        if self.removing:
            return None
        return self.run.box if self.run else self.record.spec

    @property
    def counted(self) -> Boxfile | None:
        """What counts for the totals of policy.toml: a run until nothing is left of it."""
        return self.run.spec if self.run and not self.removing else self.box

    @property
    def leaving(self) -> tuple[bool, bool]:
        """Whether it is being deleted, and whether its run is over: a pass that was begun for
        another answer does not go on.
        """
        return self.removing, self.run is not None and self.run.over


def known(entries: Mapping[str, Entry], name: str, *, declared: bool = False) -> Entry:
    """The entry of this name, with `declared` only one that has a spec in force and is not being
    deleted. Raises NoSandbox.
    """
    entry = entries.get(name)
    if entry is None or (declared and (entry.record.spec is None or entry.removing)):
        raise NoSandbox(
            f"there is no sandbox {name}", fix=f"box new {name}, or box get to list them"
        )
    return entry
