"""Puts back what somebody changed on a live VMM from outside: limits, membership, rlimits.

It must not touch what only a new process can have; such a reading is left for the caller to replace
the VMM.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconcilers.confinement.policy import Confinement
from specs.names import HostNames
from specs.reading import Reading


def mend(
    pid: int, want: Confinement, names: HostNames, readings: Sequence[Reading]
) -> tuple[Reading, ...]:
    """Mends every reading that is not ok and says "in place"; returns those it acted on.

    Whether it helped is seen by reading again. Raises HostError when the host refuses a change.
    """
    raise NotImplementedError
