"""`$BOX_HOME/policy.toml`: the most that any Boxfile may ask for, whoever wrote it.

It only forbids. It must not fall open: a file with mistakes is an error, never an empty ceiling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from specs.boxfile import Accel, Boxfile, Isolation, OnDelete, State
from specs.document import Document
from specs.errors import InvalidBoxfile
from specs.fields import AbsolutePath, Line
from specs.imagename import canonical
from specs.tomltext import parse_toml
from specs.validate import in_order, judge

Count = Annotated[StrictInt, Field(ge=0, le=2**40)]


@dataclass(frozen=True, slots=True)
class Totals:
    """What a set of sandboxes asks for together; RAM and CPUs of running ones only."""

    sandboxes: int = 0
    ram_mib: int = 0
    cpus: int = 0

    @classmethod
    def of(cls, boxes: Iterable[Boxfile]) -> Totals:
        """The sum over `boxes`."""
        kept = tuple(boxes)
        running = [box for box in kept if box.state is State.running]
        return cls(len(kept), sum(b.ram_mib for b in running), sum(b.cpus for b in running))


class Ceiling(BaseModel):
    """Each rule left out allows everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    isolation: Isolation = Field(
        Isolation.standard, description="The least isolation allowed; strict forbids standard."
    )
    allow_emulation: StrictBool = Field(True, description="Software-emulated VMs may run.")
    mount_prefixes: tuple[AbsolutePath, ...] | None = Field(
        None, description="Host directories below which mounts may lie."
    )
    base_prefixes: tuple[Line, ...] | None = Field(
        None, description="How the reference of a base may begin."
    )
    allow_erase: StrictBool = Field(True, description="data.on_delete may be erase.")
    build_network: StrictBool = Field(True, description="Build steps may reach the network.")
    max_ram_mib: Count | None = None
    max_cpus: Count | None = None
    max_data_mib: Count | None = None
    max_sandboxes: Count | None = None
    max_total_ram_mib: Count | None = None
    max_total_cpus: Count | None = None

    def judge(self, box: Boxfile, totals_of_others: Totals) -> tuple[str, ...]:
        """Every rule that `box` breaks, as "rule: reason"; empty when it is allowed.

        `totals_of_others` counts all other sandboxes. Whether `accel: auto` means emulation is only
        known on the host: see `refuse_emulation`. So is where a mount leads: whoever opens it
        compares it with `mount_prefixes`.
        """
        broken = [
            *self._limits(box),
            *self._totals(box, totals_of_others),
            *self._bases(box),
            *self.weak_walls(box),
        ]
        if not self.allow_erase and box.data.on_delete is OnDelete.erase:
            broken.append("allow_erase: data.on_delete may not be erase")
        return tuple(broken)

    def weak_walls(self, box: Boxfile) -> tuple[str, ...]:
        """The rules that any machine breaks which is walled in as `box` says."""
        broken = []
        if self.isolation is Isolation.strict and box.isolation is not Isolation.strict:
            broken.append("isolation: at least strict is required")
        if box.accel is Accel.tcg and (refusal := self.refuse_emulation()):
            broken.append(refusal)
        return tuple(broken)

    def refuse_emulation(self) -> str:
        """Why a software-emulated VM may not run, as "rule: reason"; empty when it may."""
        return "" if self.allow_emulation else "allow_emulation: software emulation is forbidden"

    def _limits(self, box: Boxfile) -> Iterable[str]:
        asked = (
            ("max_ram_mib", "ram_mib", box.ram_mib, self.max_ram_mib),
            ("max_cpus", "cpus", box.cpus, self.max_cpus),
            ("max_data_mib", "data.size_mib", box.data.size_mib, self.max_data_mib),
        )
        for rule, field, value, limit in asked:
            if limit is not None and value > limit:
                yield f"{rule}: {field} is {value}, at most {limit} is allowed"

    def _totals(self, box: Boxfile, others: Totals) -> Iterable[str]:
        mine = Totals.of([box])
        sums = (
            ("max_sandboxes", "sandboxes", others.sandboxes, mine.sandboxes, self.max_sandboxes),
            ("max_total_ram_mib", "ram_mib", others.ram_mib, mine.ram_mib, self.max_total_ram_mib),
            ("max_total_cpus", "cpus", others.cpus, mine.cpus, self.max_total_cpus),
        )
        for rule, what, taken, asked, limit in sums:
            if limit is not None and asked and taken + asked > limit:
                yield f"{rule}: {what} would be {taken + asked} in all, at most {limit} is allowed"

    def _bases(self, box: Boxfile) -> Iterable[str]:
        if self.base_prefixes is None:
            return
        # In full: `team/tool` is another image than a prefix that names a registry `team` means.
        base = canonical(box.base)
        if not any(_begins(base, prefix) for prefix in self.base_prefixes):
            yield f"base_prefixes: {base} begins with none of the allowed prefixes"


def parse_ceiling(data: bytes, file: str) -> Ceiling:
    """The ceiling in a policy.toml; raises InvalidBoxfile with every mistake."""
    document, problems = parse_toml(data, file)
    ceiling, problems = judge(Ceiling, document or Document({}), file, problems)
    if ceiling is None:
        raise InvalidBoxfile.of(in_order(problems))
    return ceiling


def _begins(reference: str, prefix: str) -> bool:
    """Prefix by whole components: `docker.io/library` does not allow `docker.io/library-evil`."""
    if ".." in reference.split("/") or not reference.startswith(prefix):
        return False
    rest = reference[len(prefix) :]
    return not rest or prefix[-1] in "/:@" or rest[0] in "/:@"
